#include "bench/gpu/sections.h"

namespace winnow {
namespace {

void Check(GpuContext&) {}
void Bench(GpuContext&) {}

}  // namespace

GpuSection MatmulSection() {
  return {"matmul", Check, Bench};
}

}  // namespace winnow
