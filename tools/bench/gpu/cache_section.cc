#include "tools/bench/gpu/checks/cache_checks.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

void Check(GpuContext& gpu) {
  CheckAppend(gpu);
  CheckDiff(gpu);
  CheckMoves(gpu);
  CheckFlags(gpu);
  CheckPeers(gpu);
  CheckFlashD2H(gpu);
}

}  // namespace

GpuSection CacheSection() {
  return {"cache", Check, BenchCache};
}

}  // namespace winnow
