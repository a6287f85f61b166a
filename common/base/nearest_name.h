#pragma once
#include <span>
#include <string_view>

namespace winnow {

// The name that `wanted` is probably a misspelling of, or "" when none is near: more than half of the letters wrong is
// no typing error.
std::string_view NearestName(std::string_view wanted, std::span<const std::string_view> names);

}  // namespace winnow
