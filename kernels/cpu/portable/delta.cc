#include <cmath>

#include "kernels/cpu/delta_head.h"
#include "kernels/cpu/portable/portable.h"

namespace winnow::portable {
namespace {

struct Lanes {
  static constexpr int kWidth = 4;
  struct V {
    float lane[kWidth];
  };
  static V Load(const float* from) { return LoadFirst(from, kWidth); }
  static void Store(float* to, const V& x) { StoreFirst(to, x, kWidth); }
  static V LoadFirst(const float* from, int n) {
    V x{};
    for (int i = 0; i < n; ++i) x.lane[i] = from[i];
    return x;
  }
  static void StoreFirst(float* to, const V& x, int n) {
    for (int i = 0; i < n; ++i) to[i] = x.lane[i];
  }
  static V Set1(float x) { return {{x, x, x, x}}; }
  static V Mul(const V& a, const V& b) { return MulAdd(a, b, Set1(0)); }
  static V MulAdd(const V& a, const V& b, const V& c) {
    V x;
    for (int i = 0; i < kWidth; ++i) x.lane[i] = a.lane[i] * b.lane[i] + c.lane[i];
    return x;
  }
};

void Silu(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = x[i] / (1 + std::exp(-x[i]));
}

}  // namespace

const DeltaMicro kDelta = {.head = RunDeltaHead<Lanes>, .silu = Silu};

}  // namespace winnow::portable
