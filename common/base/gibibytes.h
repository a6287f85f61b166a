#pragma once
#include <string>

namespace winnow {

// "1.50 GiB", for people.
std::string Gibibytes(double bytes);

}  // namespace winnow
