#pragma once
#include <string_view>

namespace winnow {

// Version of this build, "1.2.3".
std::string_view Version();

}  // namespace winnow
