#pragma once
#include <string>
#include <string_view>

namespace winnow {

// 128 random bits in hexadecimal. Any thread.
std::string NewRequestId();

// True when a client's id may be echoed and logged: 1 to 128 characters of [A-Za-z0-9._:-].
bool IsUsableRequestId(std::string_view id);

}  // namespace winnow
