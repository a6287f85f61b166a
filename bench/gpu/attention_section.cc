#include "bench/gpu/sections.h"

namespace winnow {
namespace {

void Check(GpuContext&) {}
void Bench(GpuContext&) {}

}  // namespace

GpuSection AttentionSection() {
  return {"attention", Check, Bench};
}

}  // namespace winnow
