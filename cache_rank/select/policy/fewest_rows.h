#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace winnow {

struct FewestRowsScratch {
  std::vector<uint32_t> bucket_of;
  std::vector<double> bucket_mass;
  std::vector<uint32_t> contested;
};

// Keeps of `rows`, in their order, the fewest of the most important ones, ties to the lower row, that bring `held` to
// `target`. All of them where they do not suffice, or where a sum is not a number. Takes time linear in the number of
// rows: they fall into buckets by importance, and a bucket's order matters only where the target is reached in it.
//
// importance [row] is not NaN; mass_of(row) >= 0 is what a row holds.
template <class Mass>
void KeepFewestRows(const float* importance, double held, double target, Mass mass_of, FewestRowsScratch& scratch,
                    std::vector<uint32_t>* rows) {
  // Of positive numbers 32 buckets to an octave, the most important rows in the first.
  constexpr uint32_t kBuckets = 1024;
  constexpr int kBucketBits = 18;
  const auto ordered_bits = [](float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
  };
  const auto more_important = [&](uint32_t a, uint32_t b) {
    return importance[a] != importance[b] ? importance[a] > importance[b] : a < b;
  };
  if (held >= target) return rows->clear();

  // The loops over all rows have no branch that depends on a row: half of them would be mispredicted.
  const size_t count = rows->size();
  scratch.bucket_of.resize(count);
  uint32_t* const bucket_of = scratch.bucket_of.data();
  uint32_t most = 0;
  for (size_t i = 0; i < count; ++i) {
    bucket_of[i] = ordered_bits(importance[(*rows)[i]]);
    most = std::max(most, bucket_of[i]);
  }
  scratch.bucket_mass.assign(kBuckets, 0);
  for (size_t i = 0; i < count; ++i) {
    bucket_of[i] = std::min((most - bucket_of[i]) >> kBucketBits, kBuckets - 1);
    scratch.bucket_mass[bucket_of[i]] += mass_of((*rows)[i]);
  }
  uint32_t last_bucket = 0;
  while (last_bucket < kBuckets && !(held + scratch.bucket_mass[last_bucket] >= target)) {
    held += scratch.bucket_mass[last_bucket++];
  }
  if (last_bucket == kBuckets) return;

  std::vector<uint32_t>& contested = scratch.contested;
  contested.resize(count);
  size_t num_contested = 0;
  for (size_t i = 0; i < count; ++i) {
    contested[num_contested] = (*rows)[i];
    num_contested += bucket_of[i] == last_bucket;
  }
  contested.resize(num_contested);
  std::sort(contested.begin(), contested.end(), more_important);
  size_t last = 0;
  while (last + 1 < contested.size() && !((held += mass_of(contested[last])) >= target)) ++last;
  const uint32_t last_row = contested[last];
  const float least = importance[last_row];
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t row = (*rows)[i];
    const bool wins = (importance[row] > least) | ((importance[row] == least) & (row <= last_row));
    (*rows)[kept] = row;
    kept += (bucket_of[i] < last_bucket) | ((bucket_of[i] == last_bucket) & wins);
  }
  rows->resize(kept);
}

}  // namespace winnow
