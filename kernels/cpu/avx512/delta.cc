#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/delta_head.h"

namespace winnow::avx512 {
namespace {

struct Lanes {
  static constexpr int kWidth = 16;
  using V = __m512;
  static V Load(const float* from) { return _mm512_loadu_ps(from); }
  static void Store(float* to, V x) { _mm512_storeu_ps(to, x); }
  static V LoadFirst(const float* from, int n) { return _mm512_maskz_loadu_ps(FirstLanes(n), from); }
  static void StoreFirst(float* to, V x, int n) { _mm512_mask_storeu_ps(to, FirstLanes(n), x); }
  static V Set1(float x) { return _mm512_set1_ps(x); }
  static V Mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V MulAdd(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
};

void Silu(float* x, int n) {
  const __m512 one = _mm512_set1_ps(1), zero = _mm512_setzero_ps();
  for (int i = 0; i < n; i += Lanes::kWidth) {
    const __m512 value = Lanes::LoadFirst(x + i, n - i);
    const __m512 e = Exp(_mm512_sub_ps(zero, value));
    Lanes::StoreFirst(x + i, _mm512_div_ps(value, _mm512_add_ps(one, e)), n - i);
  }
}

}  // namespace

const DeltaMicro kDelta = {.head = RunDeltaHead<Lanes>, .silu = Silu};

}  // namespace winnow::avx512
