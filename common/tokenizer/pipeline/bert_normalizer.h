#pragma once
#include <memory>

#include "common/tokenizer/pipeline/normalizer.h"

namespace winnow {

// What BERT does to a text, in this order; each part is optional.
struct BertNormalizerOptions {
  bool clean_text = true;            // control characters vanish, whitespace becomes spaces
  bool handle_chinese_chars = true;  // spaces around ideographs
  bool strip_accents = true;
  bool lowercase = true;
};
std::unique_ptr<Normalizer> NewBertNormalizer(const BertNormalizerOptions& options);

}  // namespace winnow
