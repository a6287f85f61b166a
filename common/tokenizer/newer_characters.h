#pragma once

namespace winnow {

// The `tokenizers` library knows some classes of characters by tables of Unicode 8 or little later, and tokenizers have
// been trained so. These are the characters that our tables have in a class and the library's do not.
bool IsNewerControl(char32_t c);
bool IsNewerNonspacingMark(char32_t c);
bool IsNewerCombiningMark(char32_t c);
bool IsNewerPunctuation(char32_t c);
bool HasNewerDecomposition(char32_t c);

}  // namespace winnow
