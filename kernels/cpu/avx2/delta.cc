#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/vector.h"
#include "kernels/cpu/delta_head.h"

namespace winnow::avx2 {
namespace {

struct Lanes {
  static constexpr int kWidth = 8;
  using V = __m256;
  static V Load(const float* from) { return _mm256_loadu_ps(from); }
  static void Store(float* to, V x) { _mm256_storeu_ps(to, x); }
  static __m256i First(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static V LoadFirst(const float* from, int n) { return _mm256_maskload_ps(from, First(n)); }
  static void StoreFirst(float* to, V x, int n) { _mm256_maskstore_ps(to, First(n), x); }
  static V Set1(float x) { return _mm256_set1_ps(x); }
  static V Mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V MulAdd(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
};

void Silu(float* x, int n) {
  const __m256 one = _mm256_set1_ps(1), log2e = _mm256_set1_ps(-1.44269504f), most = _mm256_set1_ps(127);
  for (int i = 0; i < n; i += Lanes::kWidth) {
    const int lanes = n - i < Lanes::kWidth ? n - i : Lanes::kWidth;
    const __m256 value = Lanes::LoadFirst(x + i, lanes);
    const __m256 e = Exp2(_mm256_min_ps(_mm256_mul_ps(value, log2e), most));
    Lanes::StoreFirst(x + i, _mm256_div_ps(value, _mm256_add_ps(one, e)), lanes);
  }
}

}  // namespace

const DeltaMicro kDelta = {.head = RunDeltaHead<Lanes>, .silu = Silu};

}  // namespace winnow::avx2
