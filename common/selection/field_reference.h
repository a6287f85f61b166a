#pragma once
#include <string>

namespace winnow {

// The page that describes every field of a specification, as Markdown: what `winnow selection fields` prints and
// docs/selection-fields.md holds.
std::string SelectionFieldReference();

}  // namespace winnow
