#include "bench/gpu/sections.h"

namespace winnow {
namespace {

void Check(GpuContext&) {}
void Bench(GpuContext&) {}

}  // namespace

GpuSection ElementwiseSection() {
  return {"elementwise", Check, Bench};
}

}  // namespace winnow
