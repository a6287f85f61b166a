#include "bench/gpu/sections.h"

namespace winnow {
namespace {

void Check(GpuContext&) {}
void Bench(GpuContext&) {}

}  // namespace

GpuSection CacheSection() {
  return {"cache", Check, Bench};
}

}  // namespace winnow
