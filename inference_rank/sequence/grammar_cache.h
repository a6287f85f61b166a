#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/grammar/token_grammar.h"
#include "inference_rank/metrics.h"
#include "winnow/v1/sampling.pb.h"

namespace winnow {

// Grammars over the tokens of the model's vocabulary, the last few of them kept: requests with one grammar share its
// states and masks. Thread-safe, but a TokenGrammar itself belongs to the engine thread once it has been given out.
class GrammarCache {
 public:
  // Without a trie every grammar is refused, for that reason.
  GrammarCache(absl::StatusOr<std::shared_ptr<const TokenTrie>> trie, InferenceRankMetrics& metrics)
      : trie_(std::move(trie)), metrics_(metrics) {}

  absl::StatusOr<std::shared_ptr<TokenGrammar>> Get(const v1::TokenConstraint& constraint);

 private:
  static constexpr size_t kMaxEntries = 32;
  struct Entry {
    std::string key;
    std::shared_ptr<TokenGrammar> grammar;
  };

  const absl::StatusOr<std::shared_ptr<const TokenTrie>> trie_;
  InferenceRankMetrics& metrics_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // guarded by mutex_; the last used first
};

}  // namespace winnow
