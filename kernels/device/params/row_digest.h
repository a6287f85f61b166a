#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/device/params/attention.h"
#include "kernels/device/params/cache.h"
#include "kernels/device/params/selection.h"
#include "kernels/device/stream.h"

namespace winnow::device {

// Digests of the rows that lists attend to, taken where the rows are stored and where they were sent to: equal where
// both hold the same bits, in any order of the rows. In each plan those of one layer, plan % num_layers.
//
//   digest = sum over rows of weight(row) * sum over its 64-bit words j of word[j] * DigestFactor(j)     modulo 2^64
//
// weight(row) is DigestFactor(~key), key = the pool index of a selected row, kSinkKey + position of a sink,
// kRecentKey + position of a recent row. Factors are odd, so that a change of one bit always changes the digest.
inline constexpr uint64_t kSinkKey = uint64_t{1} << 32, kRecentKey = uint64_t{2} << 32;

// splitmix64, made odd.
constexpr uint64_t DigestFactor(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return (x ^ x >> 31) | 1;
}

struct RowDigest {
  uint64_t digest = 0;
  uint32_t plan = 0;  // whose rows these are
  uint32_t recent_rows = 0;
};

// What both sides have in common. Lists and their kin of layer l begin l * layer_lists behind.
struct DigestPlan {
  int num_layers = 0;
  int num_rows = 0;  // of a plan
  int num_kv_heads = 0;
  int64_t layer_lists = 0;
  size_t row_bytes = 0;                 // a multiple of 16, at most 1,024
  const uint32_t* positions = nullptr;  // [num_rows]; rows with kNoPosition get no digest
  const uint32_t* plan = nullptr;       // one word
  // [num_rows, num_kv_heads], for launches of one stream: zeroed once when they are allocated.
  uint64_t* sums = nullptr;
  uint32_t* arrivals = nullptr;
};

// As the cache rank has them: sinks, the rows that the plan's assignment of slots has left in the residency, and the
// recent window.
struct StoredDigestParams {
  DigestPlan plan;
  const SelectionList* lists = nullptr;
  const ResidencyList* residency = nullptr;
  const uint32_t* blocks = nullptr;
  const void* row_pool = nullptr;
  RowDigest* digests = nullptr;  // [num_rows, num_kv_heads] of even plans, those of odd ones odd_digests behind
  int64_t odd_digests = 0;
};

// As attention finds them in the slots.
struct AttendedDigestParams {
  DigestPlan plan;
  const AttentionList* lists = nullptr;
  const uint32_t* pages = nullptr;
  const uint32_t* selected = nullptr;  // pool indices
  const void* slot_pool = nullptr;
  RowDigest* digests = nullptr;  // [num_rows, num_kv_heads]
};

struct DigestKernels {
  void (*stored_digest)(Stream, const StoredDigestParams&);
  void (*attended_digest)(Stream, const AttendedDigestParams&);
};
extern const DigestKernels kDigestKernels;

}  // namespace winnow::device
