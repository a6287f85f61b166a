#include <span>

#include "tests/fuzz/cache_rank/fuzzed_cache_rank.h"

// Input: a program of calls and frames, which a cache rank's data plane is given one after the other.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  winnow::fuzz::CallReader in(std::span(data, size));
  winnow::fuzz::FuzzedCacheRank rank(in);
  constexpr int kMostCalls = 200;
  for (int call = 0; !in.done() && call < kMostCalls; ++call) rank.Call();
  return 0;
}
