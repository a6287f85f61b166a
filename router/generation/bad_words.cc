#include "router/generation/bad_words.h"

#include <vector>

namespace winnow {
namespace {

constexpr size_t kMaxWords = 256;
constexpr size_t kMaxWordBytes = 1024;

}  // namespace

absl::Status AddBadWords(std::span<const std::string> words, const TextCodec& codec, v1::SamplingParams* sampling) {
  if (words.size() > kMaxWords) {
    return absl::InvalidArgumentError(absl::StrCat("has ", words.size(), " words, at most ", kMaxWords));
  }
  for (const std::string& word : words) {
    if (word.empty() || word.size() > kMaxWordBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("holds a word that is empty or longer than ", kMaxWordBytes, " bytes"));
    }
    std::vector<uint32_t> before;
    for (const std::string& text : {word, " " + word}) {
      WINNOW_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, codec.Encode(text, /*add_special_tokens=*/false));
      if (ids.empty() || ids == before) continue;
      sampling->add_bad_words()->mutable_token_ids()->Assign(ids.begin(), ids.end());
      before = ids;
    }
  }
  return absl::OkStatus();
}

}  // namespace winnow
