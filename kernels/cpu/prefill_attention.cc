#include "kernels/cpu/prefill_attention.h"

#include <algorithm>

#include "kernels/cpu/cpu_executor.h"

namespace winnow {

void RunPrefillAttention(Executor& executor, const PrefillAttentionParams& params, const PrefillMicro& micro) {
  CpuExecutor& cpu = CpuExecutor::From(executor);
  const size_t scratch_bytes = micro.scratch_bytes(params);
  for (GrowBuffer& buffer : cpu.worker_scratch) buffer.Reserve(scratch_bytes);
  const int block_queries = micro.block_queries(params);
  const int num_blocks = (params.num_queries + block_queries - 1) / block_queries;
  // The last blocks see the most keys: they go first, so that the team ends together.
  cpu.team.ParallelFor(num_blocks * params.num_kv_heads, [&](int item, int worker) {
    const int begin = (num_blocks - 1 - item / params.num_kv_heads) * block_queries;
    const int end = std::min(begin + block_queries, params.num_queries);
    micro.block(params, item % params.num_kv_heads, begin, end, cpu.worker_scratch[worker].Reserve(scratch_bytes));
  });
}

}  // namespace winnow
