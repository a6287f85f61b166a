#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace winnow {

// Whose query the keys are scored with.
enum class Predictor : uint8_t {
  kDense,     // nobody's: everything is attended
  kExact,     // the position's own (lag 0): waits for it
  kLast,      // that of the position before
  kTemporal,  // a blend of the last window + 1 (the base paper's regression)
  kDepth,     // the position's own, computed `lookahead` layers early from the residual stream
  kFixed,     // nobody's: the first rows after the sinks, always; costs nothing and is what others are timed against
};
enum class TemporalVariant : uint8_t { kSoftmax, kRidge, kClipped };
// Where a depth prediction multiplies the residual with Wq.
enum class Projection : uint8_t { kInferenceRank, kCacheRank };
// Rows moved into the pool ahead of time. Changes what is resident, never what is selected.
enum class Prefetch : uint8_t { kNone, kTemporal };
enum class Scorer : uint8_t {
  kToken,         // every key
  kPageMinmax,    // bound of q.k over the page's key-wise minima and maxima (Quest)
  kPageCuboid,    // the same of a box drawn in to the keys' mean distance from its centre (ArkVale's cuboid-mean)
  kHierarchical,  // bounds of logical pages, max-reduced over physical ones (LServe)
  kTwoStage,      // page bounds down to CandidateTokens, then their keys
  kIndexer,       // the model's own: its index keys, by its rule, of every position up to the newest
};
// A copy of the keys of fewer bits that scorers read instead of the keys.
enum class KeyCopy : uint8_t { kNone, kInt8, kInt4 };
enum class GroupAggregation : uint8_t { kSoftmaxSum, kMax, kMean };
// Query heads that share a selected list: those of a kv head, or each has its own.
enum class ListPer : uint8_t { kKvHead, kQueryHead };
enum class Policy : uint8_t {
  kTopK,
  kMass,  // the best ones until 1 - epsilon of the mass is held, at most the budget; of pages one after the other (PSA)
};
// When the mass policy stops: by PSA's Algorithm 1, which trusts the order of the estimates, or by a bound that holds
// whatever the pages not read contain.
enum class StopRule : uint8_t { kEstimate, kBound };
enum class Correction : uint8_t {
  kNone,
  kRemote,  // the cache rank attends to the top-k rows that the prediction missed and sends the partial state
};
// Rows of a selection that travel: those that are not resident, or all of them every time (the base paper).
enum class Transfer : uint8_t { kDelta, kFull };

// What a head profile (head_profile.h), where the server has one, decides: which heads stream, and how the budget is
// shared out among the others.
enum class ProfileUse : uint8_t { kNone, kBudgets, kStreaming, kBudgetsAndStreaming };

// Part of ranks' fingerprints: raised when a specification says more than before, or selects other rows.
inline constexpr uint32_t kSelectorVersion = 2;

inline constexpr uint32_t kUnlimitedBudget = std::numeric_limits<uint32_t>::max();

// A complete selection specification: which rows a query may attend to, and how they are found. Presets (presets.h) are
// full records of this type. The attended set of (position p, layer, kv head) is
//   A = [0, sink_tokens) + Sel + [b(p), p],  Sel a subset of [sink_tokens, b(p)) of at most HeadBudget rows,
// with list_per = query-head one for each query head, and of the scorer kIndexer A = Sel, a subset of [0, p], where
// b(p) is the start of the recent window (RecentStart below; attended_set.h has the rules list by list).
struct SelectionSpec {
  std::string preset = "depth";

  Predictor predictor = Predictor::kDepth;
  uint32_t window = 8;  // temporal: past queries blended, 2..32
  TemporalVariant temporal_variant = TemporalVariant::kSoftmax;
  bool post_rope = false;  // temporal: blend after RoPE
  uint32_t lookahead = 1;  // depth: layers ahead, 1..8
  Projection projection = Projection::kInferenceRank;
  Prefetch prefetch = Prefetch::kNone;

  Scorer scorer = Scorer::kToken;
  uint32_t page_tokens = 16;             // of page bounds: 16, 32 or 64; hierarchical: the logical page
  uint32_t physical_page_tokens = 64;    // hierarchical: a multiple of page_tokens
  uint32_t candidate_factor = 4;         // two-stage: keys that the first stage leaves, in budgets ...
  uint32_t min_candidate_tokens = 8192;  // ... and at least: small budgets lose rows to page bounds otherwise
  uint32_t score_all_below_tokens = 0;   // two-stage: every key is scored while fewer than these are selectable
  // Two-stage: rows of the groups of pages that are left to the first stage (page_groups.h); 0: all.
  uint32_t group_candidate_tokens = 0;
  uint32_t dense_below_tokens = 0;  // positions below attend to everything (attended_set.h)
  KeyCopy key_copy = KeyCopy::kNone;
  GroupAggregation group_aggregation = GroupAggregation::kSoftmaxSum;
  ListPer list_per = ListPer::kKvHead;

  Policy policy = Policy::kTopK;
  float epsilon = 0.05f;  // mass policy: share of the mass that may be missed
  StopRule stop_rule = StopRule::kEstimate;
  uint32_t budget_tokens = 2048;
  // Budgets by (layer, kv head), from a head profile; empty: budget_tokens everywhere. 0: the head streams, it attends
  // to sinks and recent window only and keeps no other rows.
  std::vector<uint32_t> head_budgets = {};
  ProfileUse profile_use = ProfileUse::kNone;  // where head_budgets come from when they are not given
  uint32_t sink_tokens = 4;
  uint32_t recent_tokens = 64;
  uint32_t reuse_interval = 1;  // positions that share a selection, 1..16

  float pool_factor = 2.0f;
  Transfer transfer = Transfer::kDelta;
  Correction correction = Correction::kNone;
  float min_captured_mass = 0;  // quality guard: heads below it are corrected; 0 = measured only
  uint32_t budget_growth = 8;   // quality guard: a head's budget may grow up to this factor, 1, 2, 4 or 8

  friend bool operator==(const SelectionSpec&, const SelectionSpec&) = default;
};

// True where everything is attended by specification, whatever the context.
constexpr bool IsDense(const SelectionSpec& spec) {
  return spec.predictor == Predictor::kDense || spec.budget_tokens == kUnlimitedBudget;
}

// True where every position up to the query's own competes for the budget: none is attended because it is among the
// first or the newest ones, as the model's own indexer has it.
constexpr bool SelectsFromAll(const SelectionSpec& spec) {
  return !IsDense(spec) && spec.scorer == Scorer::kIndexer;
}

// True for predictors that need nothing of position p itself: `last` and `temporal`.
constexpr bool PredictsFromPast(Predictor predictor) {
  return predictor == Predictor::kLast || predictor == Predictor::kTemporal;
}

// True when attention waits for the cache rank's verification with the real query.
constexpr bool WaitsForVerification(const SelectionSpec& spec) {
  return !IsDense(spec) && (spec.correction == Correction::kRemote || spec.min_captured_mass > 0);
}

// True when masses of earlier positions change the budgets of later ones.
constexpr bool GrowsBudgets(const SelectionSpec& spec) {
  return !IsDense(spec) && spec.min_captured_mass > 0 && spec.budget_growth > 1;
}

// Selected lists of one kv head: one that its query heads share, or one for each of them.
constexpr int ListsPerKvHead(const SelectionSpec& spec, int group_size) {
  return spec.list_per == ListPer::kQueryHead ? group_size : 1;
}

// Most rows that are selected for a list = layer * num_kv_heads + kv_head, before the guard lets it grow.
constexpr uint32_t HeadBudget(const SelectionSpec& spec, size_t list) {
  return spec.head_budgets.empty() ? spec.budget_tokens : spec.head_budgets[list];
}

// The greatest of those of all lists.
constexpr uint32_t GreatestHeadBudget(const SelectionSpec& spec, size_t num_lists) {
  uint32_t greatest = 0;
  for (size_t list = 0; list < num_lists; ++list) greatest = std::max(greatest, HeadBudget(spec, list));
  return greatest;
}

// Two-stage: rows that the first stage leaves for a list of so many selected rows, in whole pages.
constexpr uint32_t CandidateTokens(const SelectionSpec& spec, uint32_t budget) {
  const uint64_t rows = std::max<uint64_t>(uint64_t{budget} * spec.candidate_factor, spec.min_candidate_tokens);
  return static_cast<uint32_t>(std::min<uint64_t>(rows, kUnlimitedBudget));
}

// Two-stage: whether every key is scored, as there is nothing to leave out or too little to be worth it.
constexpr bool ScoresAllOf(const SelectionSpec& spec, uint32_t selectable, uint32_t budget) {
  return selectable < spec.score_all_below_tokens || selectable <= CandidateTokens(spec, budget);
}

// HeadBudget with all growth that the guard may allow.
constexpr uint32_t BudgetCeiling(const SelectionSpec& spec, size_t list) {
  const uint64_t budget = HeadBudget(spec, list);
  const uint64_t ceiling = spec.min_captured_mass > 0 ? budget * spec.budget_growth : budget;
  return ceiling < kUnlimitedBudget ? static_cast<uint32_t>(ceiling) : kUnlimitedBudget;
}

// Most rows that the lists of a kv head hold together, with all growth: what grants of slots must cover.
constexpr uint32_t UnionCeiling(const SelectionSpec& spec, size_t list, int group_size) {
  const uint64_t rows = uint64_t{BudgetCeiling(spec, list)} * ListsPerKvHead(spec, group_size);
  return rows < kUnlimitedBudget ? static_cast<uint32_t>(rows) : kUnlimitedBudget;
}

// Start b of the recent window of position p: the largest block-aligned position such that [b, p] holds at least
// `recent_tokens` rows (so between recent_tokens and recent_tokens + block_tokens - 1), and never below the sinks. Rows
// below b are complete blocks.
constexpr uint32_t RecentStart(uint32_t position, uint32_t recent_tokens, uint32_t sink_tokens, uint32_t block_tokens) {
  const uint32_t length = position + 1;
  const uint32_t start = length > recent_tokens ? (length - recent_tokens) / block_tokens * block_tokens : 0;
  return start > sink_tokens ? start : sink_tokens;
}

}  // namespace winnow
