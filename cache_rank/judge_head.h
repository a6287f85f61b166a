#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache_rank/select_head.h"

namespace winnow {

// Which rows a head's verdict adds to its attended set.
enum class CorrectionAction : uint8_t { kNone, kMissedTopK, kComplement };

// `mass`: captured by A; `mass_with_top_k`: by A and the top-k rows of the real query. A head below the specification's
// min_captured_mass gets what the top-k has beyond A, or everything when that does not reach the threshold either; with
// remote correction every head gets at least the missed top-k. A mass that is not a number is below every threshold.
CorrectionAction DecideCorrection(const SelectionSpec& spec, float mass, float mass_with_top_k);

// What the real query of one (position, layer, kv head) is asked about A = sinks + selected + recent window.
struct HeadTrial {
  const SelectionSpec* spec = nullptr;
  uint32_t position = 0;
  uint32_t budget_tokens = 0;               // of Sel(position), and of the top-k that it is compared with
  const void* const* tiles = nullptr;       // of rows [0, position], the own one included
  const void* const* row_blocks = nullptr;  // likewise
  const float* query = nullptr;             // [group, head_dim] the real one, rotated
  std::span<const uint32_t> selected;       // Sel(position)
  // Set where `selected` is the top-k of this very query: its captured mass, and no second pass over the keys.
  std::optional<float> mass_of_top_k;
};

// Bytes of keys that JudgeHead reads for a trial, beside the rows that it adds (HeadPartial::rows_read).
uint64_t ScoredKeyBytes(const SelectionModel& model, const HeadTrial& trial);

// The verdict, and the partial attention state over the rows that it adds.
struct HeadPartial {
  CorrectionAction action = CorrectionAction::kNone;
  float mass_before = 0;
  float mass_after = 0;
  uint32_t rows_read = 0;
  std::vector<float> o;    // [group, head_dim]; empty when no row is added
  std::vector<float> lse;  // [group] natural log
};

// One per worker thread, beside its SelectScratch.
struct JudgeScratch {
  std::vector<uint32_t> top_k, missed, attended;
  ScratchBuffer<std::byte> attention;
};

// Top-k is what the predictor "exact" with the scorer "token" selects: the position's own row has a share of the mass
// but no say in the list. A pure function of the trial.
void JudgeHead(const KernelTable& kernels, const SelectionModel& model, const HeadTrial& trial, SelectScratch& scratch,
               JudgeScratch& judge, HeadPartial* partial);

}  // namespace winnow
