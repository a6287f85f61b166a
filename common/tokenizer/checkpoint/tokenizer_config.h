#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tokenizer/added_vocabulary.h"
#include "common/tokenizer/model/token_model.h"
#include "common/tokenizer/pipeline/post_processor.h"

namespace winnow {

// What tokenizer_config.json, special_tokens_map.json and added_tokens.json say beside a vocabulary that is not a
// tokenizer.json. All of these files may be missing.
struct TokenizerConfig {
  bool exists = false;          // tokenizer_config.json does
  std::string tokenizer_class;  // empty when it is not said
  std::optional<std::string> bos_token, eos_token, unk_token;
  std::vector<std::string> special_tokens;  // these three and the other named ones, additional_special_tokens
  std::vector<AddedToken> added_tokens;     // those that bring their ids
  std::optional<bool> add_bos_token, add_eos_token, add_prefix_space, legacy;
  std::optional<bool> do_lower_case, strip_accents, tokenize_chinese_chars;
  std::optional<std::string> pattern;  // of tiktoken
  std::string bytes;                   // of all the files, for a digest

  // Errors name the file and the field.
  static absl::StatusOr<TokenizerConfig> Load(const std::string& model_dir);

  bool ClassContains(std::string_view name) const { return tokenizer_class.find(name) != std::string::npos; }
  // The added tokens, and behind them the special tokens that are not among them: with the model's id, or, of tokens
  // that it does not know, with the next free ones.
  std::vector<AddedToken> AllAddedTokens(const TokenModel& model) const;
  // The ids of `before` and `after` around a text, so far as they are asked for; InvalidArgument when one is not known.
  static absl::StatusOr<PostProcessor> Surround(const std::optional<std::string>& before,
                                                const std::optional<std::string>& after, const TokenModel& model,
                                                const std::vector<AddedToken>& added);
};

}  // namespace winnow
