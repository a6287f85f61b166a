#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace winnow {

// A regular expression of the texts of a `format` of JSON schemas, in part fewer than the format has: hosts without
// international names, say. Empty where the format is not known.
std::string_view FormatRegex(std::string_view format);

// For errors.
std::vector<std::string> KnownFormats();

}  // namespace winnow
