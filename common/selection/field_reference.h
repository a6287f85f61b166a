#pragma once
#include <string>

namespace winnow {

// The page that describes every field of a specification, as Markdown: docs/selection-fields.md.
std::string SelectionFieldReference();

}  // namespace winnow
