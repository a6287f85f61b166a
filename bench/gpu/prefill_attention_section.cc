#include "bench/gpu/sections.h"

namespace winnow {
namespace {

void Check(GpuContext&) {}
void Bench(GpuContext&) {}

}  // namespace

GpuSection PrefillAttentionSection() {
  return {"prefill_attention", Check, Bench};
}

}  // namespace winnow
