#pragma once
#include <cstdint>
#include <limits>
#include <string>

namespace winnow {

enum class Predictor : uint8_t { kDense, kExact, kLast, kTemporal, kDepth };
enum class TemporalVariant : uint8_t { kSoftmax, kRidge, kClipped };
enum class Scorer : uint8_t { kToken };
enum class Policy : uint8_t { kTopK };
enum class GroupAggregation : uint8_t { kSoftmaxSum, kMax, kMean };

inline constexpr uint32_t kUnlimitedBudget = std::numeric_limits<uint32_t>::max();

// A complete selection specification: which rows a query may attend to, and how they are found. Presets (presets.h) are
// full records of this type. The attended set of (position p, layer, kv head) is
//   A = [0, sink_tokens) + Sel + [b(p), p],  Sel a subset of [sink_tokens, b(p)) of at most budget_tokens rows,
// where b(p) is the start of the recent window (RecentStart below).
struct SelectionSpec {
  std::string preset = "winnow";
  Predictor predictor = Predictor::kDepth;
  uint32_t window = 8;  // temporal: past queries blended, 2..32
  TemporalVariant temporal_variant = TemporalVariant::kSoftmax;
  bool post_rope = false;  // temporal: blend after RoPE
  uint32_t lookahead = 1;  // depth: layers ahead, 1..8
  Scorer scorer = Scorer::kToken;
  Policy policy = Policy::kTopK;
  GroupAggregation group_aggregation = GroupAggregation::kSoftmaxSum;
  uint32_t budget_tokens = 2048;
  uint32_t sink_tokens = 4;
  uint32_t recent_tokens = 64;
  float pool_factor = 2.0f;

  friend bool operator==(const SelectionSpec&, const SelectionSpec&) = default;
};

// Start b(p) of the recent window of position p: the largest block-aligned position such that [b, p] holds at least
// `recent_tokens` rows (so between recent_tokens and recent_tokens + block_tokens - 1), and never below the sinks. Rows
// below b(p) are complete blocks.
constexpr uint32_t RecentStart(uint32_t position, uint32_t recent_tokens, uint32_t sink_tokens, uint32_t block_tokens) {
  const uint32_t length = position + 1;
  const uint32_t start = length > recent_tokens ? (length - recent_tokens) / block_tokens * block_tokens : 0;
  return start > sink_tokens ? start : sink_tokens;
}

// True when every row up to `position` is attended: what lies between the sinks and the recent window fits the budget.
constexpr bool AttendsEverything(uint32_t position, const SelectionSpec& spec, uint32_t block_tokens) {
  if (spec.predictor == Predictor::kDense || spec.budget_tokens == kUnlimitedBudget) return true;
  return RecentStart(position, spec.recent_tokens, spec.sink_tokens, block_tokens) - spec.sink_tokens <=
         spec.budget_tokens;
}

}  // namespace winnow
