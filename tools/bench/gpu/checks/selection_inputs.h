#pragma once
#include <cstdint>
#include <vector>

#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

// Random lists for selection: keys and page bounds on the device behind a shuffled block table, and what the host needs
// for references.
struct SelectionShape {
  int head_dim = 128;
  int group = 5;
  Dtype dtype = Dtype::kBf16;
  int page_tokens = 16;
  bool rows = false;              // keys lie in rows of keys and values, and bounds in the place of their 8-bit copies
  bool one_key = false;           // all keys are the same
  uint32_t group_candidates = 0;  // SelectParams; 0: no bounds of groups of pages are kept
};

class SelectionInputs {
 public:
  // One list for each number of keys; sinks of 4 rows and a recent window of about 64 are not to be selected.
  SelectionInputs(GpuContext& gpu, const SelectionShape& shape, const std::vector<uint32_t>& num_keys, uint32_t budget);

  const SelectionShape shape;
  std::vector<device::SelectionList> lists;
  std::vector<uint32_t> blocks;
  std::vector<float> queries;  // [lists, group, head_dim]
  float scale;
  uint32_t max_keys = 0, max_budget = 0;

  // Without outputs and scratch.
  device::SelectParams Params() const;
  // Of a list, key by key: what is stored.
  double Key(const device::SelectionList& list, uint32_t row, int d) const;
  float KeyScale(const device::SelectionList& list, uint32_t row) const;  // of int8; 0: a key of zeros
  // Page p's pseudo-key: the maxima, then the minima.
  double Bound(const device::SelectionList& list, uint32_t page, int d) const;
  // The same of a group of pages.
  double GroupBound(const device::SelectionList& list, uint32_t group, int d) const;

 private:
  std::vector<float> keys_;          // [num_blocks, 32, head_dim] as stored, scales applied
  std::vector<float> scales_;        // [num_blocks, 32, 2] of int8
  std::vector<float> bounds_;        // [num_blocks, 32 / page_tokens, 2 * head_dim]
  std::vector<float> group_bounds_;  // [groups of `blocks`, 2 * head_dim]
  device::SelectParams params_;
};

// Scores in f64, and how far f32 products and rounded queries may be from them.
struct ReferenceScores {
  std::vector<std::vector<double>> scores;  // [group][columns]
  double delta = 0;
};
ReferenceScores ScoreKeysInF64(const SelectionInputs& inputs, const device::SelectionList& list);
ReferenceScores ScorePagesInF64(const SelectionInputs& inputs, const device::SelectionList& list);
ReferenceScores ScoreGroupsInF64(const SelectionInputs& inputs, const device::SelectionList& list, uint32_t num_groups);

// A query as keys of int8 are scored with it, and what the CPU backend's scores are, bit for bit (KeyScoreParams).
std::vector<float> Int8Rounded(const float* query, int head_dim);
std::vector<float> ScoresOfInt8(const SelectionInputs& inputs, const device::SelectionList& list, int query);

float Bf16Rounded(float value);
uint16_t Bf16Bits(float value);
// e4m3, round to nearest even, finite values only; clamped to 448.
uint8_t F8Bits(float value);
float F8Value(uint8_t bits);

}  // namespace winnow
