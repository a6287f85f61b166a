#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/device/arena.h"
#include "kernels/device/params/activation.h"
#include "kernels/device/stream.h"

namespace winnow::device {

// The experts of a sparse layer in device memory. Those that every row goes through, the shared ones, lie behind those
// that are routed to, in parts of an expert's width. hidden_size and intermediate_size are multiples of 8, with mxfp4
// of 32; matrices are aligned to 16 bytes.
struct ExpertMatrices {
  // A router's row for each routed expert; where the shared ones have a gate, its row comes last.
  const float* router = nullptr;       // [num_logits(), hidden_size]
  const float* router_bias = nullptr;  // [num_logits()]; may be null
  // [num_experts], may be null: added to probabilities that are sigmoids where experts are chosen, not where they
  // weigh.
  const float* correction = nullptr;
  // Matrices are bf16 or, with mxfp4, codes of four bits and a scale for each 32 inputs (expert_codes.h).
  bool mxfp4 = false;
  const void* gate_up = nullptr;            // [num_all(), 2 * intermediate_size, hidden_size]: gate, then up
  const void* down = nullptr;               // [num_all(), hidden_size, intermediate_size]
  const uint8_t* gate_up_scales = nullptr;  // [num_all(), 2 * intermediate_size, hidden_size / 32]
  const uint8_t* down_scales = nullptr;     // [num_all(), hidden_size, intermediate_size / 32]
  const float* gate_up_bias = nullptr;      // [num_all(), 2 * intermediate_size]; may be null
  const float* down_bias = nullptr;         // [num_all(), hidden_size]; may be null
  GatedActivation activation = GatedActivation::kSilu;
  int num_experts = 0;       // that are routed to, at most kMaxExperts with the shared ones
  int num_shared = 0;        // at most kMaxExpertsPerToken
  bool shared_gate = false;  // a row's share of the shared experts is the sigmoid of the router's last logit
  int hidden_size = 0;
  int intermediate_size = 0;
  int experts_per_token = 0;  // at most kMaxExpertsPerToken
  bool sigmoid = false;       // probabilities are sigmoids of the logits, not a softmax over all of them
  bool normalizes = false;    // the chosen probabilities are divided by their sum
  float scale = 1;            // and then multiplied with this
  // With several groups of consecutive experts only the groups_per_token best ones take part, by the sum of their
  // group_scores largest values that decide.
  int groups = 1;  // divides num_experts, at most kMaxExpertGroups
  int groups_per_token = 1;
  int group_scores = 2;  // 1 or 2

  constexpr int num_all() const { return num_experts + num_shared; }
  constexpr int num_logits() const { return num_experts + (shared_gate ? 1 : 0); }
  constexpr int pairs_per_row() const { return experts_per_token + num_shared; }
};
inline constexpr int kMaxExperts = 512;
inline constexpr int kMaxExpertGroups = 64;
inline constexpr uint32_t kNoPair = ~0u;
inline constexpr int kMaxExpertsPerToken = 32;

// Rows that a tile of a prompt's products takes of one expert.
inline constexpr int kExpertTileRows = 128;
struct ExpertTile {
  uint32_t expert;
  uint32_t first;  // pair
};

// Pairs of one expert: those from `first` on.
struct alignas(16) ExpertPairs {
  uint32_t expert, first, count;
};

// Which experts some rows go to: a pair for each row and expert of it, sorted by expert. Within an expert the order is
// any; no result depends on it. All of it is zeroed once when it is allocated.
struct RoutedRows {
  float* logits = nullptr;        // [max_rows, num_logits]
  uint32_t* first = nullptr;      // [num_all + 1]: pairs of expert e are [first[e], first[e + 1])
  ExpertPairs* active = nullptr;  // [num_all]: experts that have pairs, ascending; behind them count is 0
  ExpertTile* tiles = nullptr;    // [max_tiles]: their pairs, kExpertTileRows at a time
  uint32_t* rows = nullptr;       // [max_pairs]: the row of a pair
  float* weights = nullptr;       // [max_pairs]: its weight in the row's sum
  uint32_t* experts = nullptr;    // [max_rows, pairs_per_row]: ascending, shared ones last; or kNoPair
  float* shares = nullptr;        // [max_rows, pairs_per_row]: their weights
  uint32_t* places = nullptr;     // [max_rows, pairs_per_row]: their pairs; kNoPair of rows that go to no expert
  uint32_t* num_active = nullptr;
  uint32_t* num_tiles = nullptr;
  uint32_t* counts = nullptr;    // [num_all] while pairs are sorted; zeros between launches
  uint32_t* next = nullptr;      // [num_all] likewise, without being zero
  uint32_t* arrivals = nullptr;  // zeros between launches
  uint64_t* touched = nullptr;   // how many experts launches have touched, added up
  uint32_t max_rows = 0, max_pairs = 0, max_tiles = 0;

  static RoutedRows Take(Arena& arena, const ExpertMatrices& of, int max_rows) {
    const size_t pairs = static_cast<size_t>(max_rows) * of.pairs_per_row();
    RoutedRows taken;
    taken.max_rows = static_cast<uint32_t>(max_rows);
    taken.max_pairs = static_cast<uint32_t>(pairs);
    taken.max_tiles = static_cast<uint32_t>(pairs / kExpertTileRows) + of.num_all();
    taken.logits = arena.TakeArray<float>(static_cast<size_t>(max_rows) * of.num_logits());
    taken.first = arena.TakeArray<uint32_t>(of.num_all() + 1);
    taken.active = arena.TakeArray<ExpertPairs>(of.num_all());
    taken.tiles = arena.TakeArray<ExpertTile>(taken.max_tiles);
    taken.rows = arena.TakeArray<uint32_t>(pairs);
    taken.weights = arena.TakeArray<float>(pairs);
    taken.experts = arena.TakeArray<uint32_t>(pairs);
    taken.shares = arena.TakeArray<float>(pairs);
    taken.places = arena.TakeArray<uint32_t>(pairs);
    taken.num_active = arena.TakeArray<uint32_t>(1);
    taken.num_tiles = arena.TakeArray<uint32_t>(1);
    taken.counts = arena.TakeArray<uint32_t>(of.num_all());
    taken.next = arena.TakeArray<uint32_t>(of.num_all());
    taken.arrivals = arena.TakeArray<uint32_t>(1);
    taken.touched = arena.TakeArray<uint64_t>(1);
    return taken;
  }
};

// All kernels here are launched as programmatic dependents (dependent_launch.cuh). What becomes of a row depends on
// that row alone, and on whether it is one of few or of a prompt's chunk: sums of the two end in other last bits.
enum class ExpertRows : uint8_t {
  kFew,   // bound by reading each touched expert once; made for up to 64 rows
  kMany,  // bound by arithmetic
};

// Chooses each row's experts: those of the largest probabilities, ties to the lower expert, with these as weights (the
// CPU's RouteParams). Logits are sums in f32; those of many rows are of weights with 16 significant
// bits, which is all that those have that were trained in bf16.
struct RouteRowsParams {
  ExpertMatrices experts;
  const void* x = nullptr;  // [num_rows, hidden_size] bf16, what the experts read
  int num_rows = 0;         // at most routed.max_rows
  // [num_rows] device, may be null. Rows with kNoPosition go to no expert, so that none is read for them.
  const uint32_t* positions = nullptr;
  RoutedRows routed;
};

// out[pair] = bf16(activation(gate x, up x)) of the pair's expert and row.
struct ExpertGateUpParams {
  ExpertMatrices experts;
  RoutedRows routed;
  const void* x = nullptr;  // [num_rows, hidden_size] bf16
  int num_rows = 0;         // that were routed
  void* out = nullptr;      // [max_pairs, intermediate_size] bf16
};

// out[pair] = weight * (down x[pair]), f32.
struct ExpertDownParams {
  ExpertMatrices experts;
  RoutedRows routed;
  const void* x = nullptr;  // [max_pairs, intermediate_size] bf16
  int num_rows = 0;
  float* out = nullptr;  // [max_pairs, hidden_size]
};

// residual[row] += the sum of the row's pairs, in ascending order of their experts. Rows without pairs stay.
struct AddExpertsParams {
  ExpertMatrices experts;
  RoutedRows routed;
  const float* pairs = nullptr;  // [max_pairs, hidden_size]
  int num_rows = 0;
  float* residual = nullptr;  // [num_rows, hidden_size]
};

struct ExpertKernels {
  void (*route)(Stream, ExpertRows, const RouteRowsParams&);
  void (*gate_up)(Stream, ExpertRows, const ExpertGateUpParams&);
  void (*down)(Stream, ExpertRows, const ExpertDownParams&);
  void (*add)(Stream, const AddExpertsParams&);
};
extern const ExpertKernels kExpertKernels;

}  // namespace winnow::device
