#include "bench/gpu/sections.h"

namespace winnow {
namespace {

void Check(GpuContext&) {}
void Bench(GpuContext&) {}

}  // namespace

GpuSection SelectionSection() {
  return {"selection", Check, Bench};
}

}  // namespace winnow
