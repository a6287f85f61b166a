#pragma once
#include <immintrin.h>

#include "kernels/cpu/key_groups.h"

namespace winnow::avx512 {
namespace {

struct GroupPair {
  const char* a = nullptr;
  const char* b = nullptr;
};

// Into the second-level cache, which has more requests under way than the first and answers within the time of a step.
inline __attribute__((always_inline)) void PrefetchLine(const GroupPair& pair, int line) {
  _mm_prefetch(pair.a + line * kStepBytes, _MM_HINT_T1);
  _mm_prefetch(pair.b + line * kStepBytes, _MM_HINT_T1);
}

// The groups that a call has yet to prefetch, in order. Tiles lie anywhere, so hardware prefetching ends with each of
// them; and a core has few requests under way, so they are made along with all other work, not in bursts.
class LaterGroups {
 public:
  static constexpr int kPairsAhead = 8;

  // Prefetches the first kPairsAhead pairs. `lines` of a group.
  LaterGroups(const KeyGroups& groups, int lines) : groups_(groups), lines_(lines) {
    for (int line = 0; line < kPairsAhead * lines; ++line) TakeLine();
  }

  // The next pair, for the caller to prefetch; null behind the last.
  GroupPair Take() {
    while (line_ != 0) TakeLine();
    const GroupPair pair = Next();
    group_ += 2;
    return pair;
  }
  // Prefetches a line of each of the next two groups.
  void TakeLine() {
    if (line_ == 0) pair_ = Next();
    if (pair_.a != nullptr) PrefetchLine(pair_, line_);
    if (++line_ == lines_) {
      line_ = 0;
      group_ += 2;
    }
  }

 private:
  GroupPair Next() const {
    return group_ < groups_.count() ? GroupPair{groups_.Lines(group_), groups_.Lines(group_ + 1)} : GroupPair{};
  }

  const KeyGroups& groups_;
  const int lines_;
  int group_ = 0;
  int line_ = 0;  // of pair_, if not 0
  GroupPair pair_;
};

}  // namespace
}  // namespace winnow::avx512
