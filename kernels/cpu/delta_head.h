#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/cpu/gated_delta.h"

// The recurrence of the gated delta rule, over the vectors of an instruction set. Internal linkage: see scalar.h.
//
// The columns of a state do not meet, so that a block of them goes through all rows of a piece in the nearest cache,
// and each step reads and writes it once: while a step changes the state, the products of the next one with it are
// summed. `Lanes` has kWidth, a vector V, and Load, Store, Set1, Mul, MulAdd(a, b, c) = a * b + c; LoadFirst and
// StoreFirst touch the first n lanes alone.

namespace winnow {
namespace {

inline constexpr int kColumnVectors = 4;  // of a block: its two sums and its difference stay in registers

template <typename Lanes, int kVectors, bool kPartial>
class DeltaColumns {
 public:
  // Columns from `first` on; of the last vector `last_lanes` where it is partial.
  DeltaColumns(const DeltaHeadTask& task, int first, int last_lanes)
      : task_(task), first_(first), last_lanes_(last_lanes) {}

  void Run() {
    ZeroSums();
    for (int i = 0; i < task_.key_dim; ++i) {
      const V key = Lanes::Set1(task_.key[i]), query = Lanes::Set1(task_.query[i]);
      for (int v = 0; v < kVectors; ++v) AddToSums(v, Load(Row(i), v), key, query);
    }
    for (int64_t row = 0; row < task_.num_rows; ++row) {
      Answer(row);
      if (row + 1 < task_.num_rows) {
        StepAndSum(row);
      } else {
        Step(row);
      }
    }
  }

 private:
  using V = typename Lanes::V;

  float* Row(int i) const { return task_.state + static_cast<int64_t>(i) * task_.value_dim + first_; }
  V Load(const float* from, int v) const {
    if (kPartial && v == kVectors - 1) return Lanes::LoadFirst(from + v * Lanes::kWidth, last_lanes_);
    return Lanes::Load(from + v * Lanes::kWidth);
  }
  void Store(float* to, int v, V value) const {
    if (kPartial && v == kVectors - 1) return Lanes::StoreFirst(to + v * Lanes::kWidth, value, last_lanes_);
    Lanes::Store(to + v * Lanes::kWidth, value);
  }
  void ZeroSums() {
    for (int v = 0; v < kVectors; ++v) by_key_[v] = by_query_[v] = Lanes::Set1(0);
  }
  void AddToSums(int v, V state, V key, V query) {
    by_key_[v] = Lanes::MulAdd(key, state, by_key_[v]);
    by_query_[v] = Lanes::MulAdd(query, state, by_query_[v]);
  }

  // From the sums over the state before the row: what is learnt, and what the state after it answers.
  void Answer(int64_t row) {
    const float* const rates = task_.rates + row * task_.stride;
    const V decay = Lanes::Set1(rates[0]), forgotten = Lanes::Set1(-rates[0]), beta = Lanes::Set1(rates[1]),
            product = Lanes::Set1(rates[2]);
    for (int v = 0; v < kVectors; ++v) {
      const V value = Load(task_.value + row * task_.stride + first_, v);
      learnt_[v] = Lanes::Mul(beta, Lanes::MulAdd(forgotten, by_key_[v], value));
      Store(task_.out + row * task_.out_stride + first_, v,
            Lanes::MulAdd(product, learnt_[v], Lanes::Mul(decay, by_query_[v])));
    }
  }

  V Changed(const float* state, int v, V decay, V key) const {
    return Lanes::MulAdd(key, learnt_[v], Lanes::Mul(decay, Load(state, v)));
  }
  void Step(int64_t row) {
    const V decay = Lanes::Set1(task_.rates[row * task_.stride]);
    for (int i = 0; i < task_.key_dim; ++i) {
      const V key = Lanes::Set1(task_.key[row * task_.stride + i]);
      for (int v = 0; v < kVectors; ++v) Store(Row(i), v, Changed(Row(i), v, decay, key));
    }
  }
  void StepAndSum(int64_t row) {
    const V decay = Lanes::Set1(task_.rates[row * task_.stride]);
    const float* const keys = task_.key + row * task_.stride;
    const float* const next_keys = keys + task_.stride;
    const float* const next_queries = task_.query + (row + 1) * task_.stride;
    ZeroSums();
    for (int i = 0; i < task_.key_dim; ++i) {
      const V key = Lanes::Set1(keys[i]), next_key = Lanes::Set1(next_keys[i]),
              next_query = Lanes::Set1(next_queries[i]);
      for (int v = 0; v < kVectors; ++v) {
        const V state = Changed(Row(i), v, decay, key);
        Store(Row(i), v, state);
        AddToSums(v, state, next_key, next_query);
      }
    }
  }

  const DeltaHeadTask& task_;
  const int first_;
  const int last_lanes_;
  V by_key_[kVectors], by_query_[kVectors];  // sums over the state of its rows with a row's key and query
  V learnt_[kVectors];
};

template <typename Lanes, int kVectors>
void RunDeltaColumns(const DeltaHeadTask& task, int first, int columns) {
  const int last_lanes = columns - (kVectors - 1) * Lanes::kWidth;
  if (last_lanes == Lanes::kWidth) {
    DeltaColumns<Lanes, kVectors, false>(task, first, last_lanes).Run();
  } else {
    DeltaColumns<Lanes, kVectors, true>(task, first, last_lanes).Run();
  }
}

template <typename Lanes>
void RunDeltaHead(const DeltaHeadTask& task) {
  constexpr int kBlock = kColumnVectors * Lanes::kWidth;
  for (int first = 0; first < task.value_dim; first += kBlock) {
    const int columns = std::min(kBlock, task.value_dim - first);
    switch ((columns + Lanes::kWidth - 1) / Lanes::kWidth) {
      case 1:
        RunDeltaColumns<Lanes, 1>(task, first, columns);
        break;
      case 2:
        RunDeltaColumns<Lanes, 2>(task, first, columns);
        break;
      case 3:
        RunDeltaColumns<Lanes, 3>(task, first, columns);
        break;
      default:
        RunDeltaColumns<Lanes, kColumnVectors>(task, first, columns);
    }
  }
}

}  // namespace
}  // namespace winnow
