#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache_rank/select/host/select_head.h"
#include "cache_rank/select/verify/missed_rows.h"

namespace winnow {

// Which rows a head's verification adds to its attended set: rows of the real query's top-k, or more than those.
enum class CorrectionAction : uint8_t { kNone, kMissedTopK, kWidened };

// What the real query of one (position, layer, kv head) is asked about A = sinks + selected + recent window.
struct HeadToVerify {
  const SelectionSpec* spec = nullptr;
  uint32_t position = 0;
  uint32_t prompt_tokens = HeadQuestion::kNoPrompt;  // as in HeadQuestion: where the recent window begins
  uint32_t budget_tokens = 0;                        // of Sel(position), and of the top-k that it is compared with
  HeadIndex index;                                   // of rows [0, position], the own one included
  const void* const* row_blocks = nullptr;           // likewise
  const float* query = nullptr;                      // [group, head_dim] the real one, rotated
  std::span<const uint32_t> selected;                // Sel(position), that of the position's anchor
  // Set where `selected` is the top-k of all rows by this very query (SelectsTopKOfRows): its captured mass, and no
  // second pass over the keys.
  std::optional<float> mass_of_top_k;
};

// The verification, and the partial attention state over the rows that it adds.
struct HeadPartial {
  CorrectionAction action = CorrectionAction::kNone;
  float mass_before = 0;
  float mass_after = 0;
  uint32_t rows_read = 0;
  uint32_t rows_needed = 0;  // fewest with which the smallest mass is reached; 0 where A reaches it, or there is none
  std::vector<float> o;      // [group, head_dim]; empty when no row is added
  std::vector<float> lse;    // [group] natural log
};

// One per worker thread, beside its SelectScratch.
struct VerifyScratch {
  std::vector<uint32_t> top_k, missed_top_k, fewest, attended;
  std::vector<float> own_scores;
  std::vector<double> weights;
  MissedRowsScratch missed_rows;
  ScratchBuffer<std::byte> attention;
  const std::vector<uint32_t>* read_rows = nullptr;  // of the state, where there is one
};

// True when a selection by the real query is the top-k that its verification would compare it with.
constexpr bool SelectsTopKOfRows(const SelectionSpec& spec) {
  return spec.scorer == Scorer::kToken && spec.policy == Policy::kTopK;
}

// Scores every key with the real query, whatever the scorer of the specification, so that the masses are exact.
//
// With remote correction the rows added are at least the top-k rows that A lacks. Top-k is what the predictor "exact"
// with the scorer "token" selects: the position's own row has a share of the mass but no say in the list. A head below
// min_captured_mass gets the fewest of the most important rows that A lacks which bring its mass there, which may be
// fewer or more than those of the top-k; all of them where nothing less does, and where the mass is not a number.
// A pure function of what is verified.
void VerifyHead(const KernelTable& kernels, const SelectionModel& model, const HeadToVerify& head,
                SelectScratch& scratch, VerifyScratch& verify, HeadPartial* partial);

}  // namespace winnow
