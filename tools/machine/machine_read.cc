#include "tools/machine/machine_read.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tools/machine/best_seconds.h"
#include "tools/machine/huge_page_memory.h"

namespace winnow {
namespace {

constexpr size_t kPieceFloats = size_t{1} << 18;
typedef float Vector __attribute__((vector_size(64)));

struct Sums {
  const float* data;
  std::vector<Vector> by_worker;
};

void SumPiece(void* context, int piece, int worker) {
  auto& sums = *static_cast<Sums*>(context);
  const float* from = sums.data + piece * kPieceFloats;
  Vector sum[8] = {};
  for (size_t i = 0; i < kPieceFloats; i += 128) {
    for (int v = 0; v < 8; ++v) {
      __builtin_prefetch(from + i + 16 * v + 1024);
      sum[v] += *reinterpret_cast<const Vector*>(from + i + 16 * v);
    }
  }
  for (int v = 1; v < 8; ++v) sum[0] += sum[v];
  sums.by_worker[worker] = sum[0];
}

}  // namespace

double MachineReadSeconds(const KernelTable& kernels, Executor& executor, size_t bytes) {
  const int pieces = static_cast<int>((bytes + kPieceFloats * 4 - 1) / (kPieceFloats * 4));
  HugePageMemory memory(static_cast<size_t>(pieces) * kPieceFloats * 4);
  Sums sums{memory.floats(), std::vector<Vector>(256)};
  return BestSeconds([&] { kernels.parallel_for(executor, pieces, SumPiece, &sums); });
}

}  // namespace winnow
