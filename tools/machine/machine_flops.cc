#include "tools/machine/machine_flops.h"

#include <vector>

#include "tools/machine/best_seconds.h"
#include "tools/machine/huge_page_memory.h"

namespace winnow {

double MachineFlops(const KernelTable& kernels, Executor& executor) {
  constexpr int kRows = 512, kOut = 2048, kIn = 512;
  const std::vector<float> x(static_cast<size_t>(kRows) * kIn, 0.5f);
  std::vector<float> y(static_cast<size_t>(kRows) * kOut);
  HugePageMemory weights(PackedBytes(kOut, kIn, Dtype::kBf16));  // zeros: the time does not depend on values
  MatmulParams params;
  params.x = x.data();
  params.x_stride = kIn;
  params.num_rows = kRows;
  params.weight = {weights.data(), kOut, kIn, Dtype::kBf16};
  params.y = y.data();
  params.y_stride = kOut;
  return 2.0 * kRows * kOut * kIn / BestSeconds([&] { kernels.prefill_matmul(executor, params); });
}

}  // namespace winnow
