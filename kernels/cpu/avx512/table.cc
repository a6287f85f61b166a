#include "kernels/cpu/attend_blocks.h"
#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/cpu_executor.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/gated_delta.h"
#include "kernels/cpu/index_keys.h"
#include "kernels/cpu/latent.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/tables.h"

namespace winnow {
namespace {

void Matmul(Executor& executor, const MatmulParams& params) {
  RunMatmul(executor, params, avx512::kMatmul);
}
void DecodeAttention(Executor& executor, const DecodeAttentionParams& params) {
  RunDecodeAttention(executor, params, avx512::DecodeAttentionTile);
}
void PrefillAttention(Executor& executor, const PrefillAttentionParams& params) {
  RunPrefillAttention(executor, params, avx512::kPrefill);
}
void GatedDelta(Executor& executor, const GatedDeltaParams& params) {
  RunGatedDelta(executor, params, avx512::kDelta);
}
void AttendBlocks(const AttendBlocksParams& params) {
  RunAttendBlocks(params, avx512::DecodeAttentionTile);
}

}  // namespace

const KernelTable kAvx512Table = {
    .name = "cpu-avx512",
    .decode_matmul = Matmul,
    .prefill_matmul = Matmul,
    .rope_append = RopeAppend,
    .latent_queries = LatentQueries,
    .latent_append = LatentAppend,
    .rotate_leading = RotateLeading,
    .decode_attention = DecodeAttention,
    .prefill_attention = PrefillAttention,
    .route_experts = RouteExperts,
    .take_rows = TakeRows,
    .add_scaled_rows = AddScaledRows,
    .add_normed = AddNormed,
    .gated_delta = GatedDelta,
    .gate_heads = GateHeads,
    .query_norm = QueryNorm,
    .rotate = Rotate,
    .attend_blocks = AttendBlocks,
    .prefix_attention = avx512::PrefixAttention,
    .merge_states = MergeStates,
    .index_keys = IndexKeys,
    .key_score = avx512::KeyScore,
    .key_softmax = avx512::KeySoftmax,
    .score_softmax = avx512::ScoreSoftmax,
    .softmax_sum = avx512::SoftmaxSum,
    .top_k = avx512::TopK,
    .gather_rows = GatherRows,
    .scatter_rows = ScatterRows,
    .embed = Embed,
    .pack = Pack,
    .parallel_for = CpuParallelFor,
    .num_workers = CpuNumWorkers,
    .new_executor = NewCpuExecutor,
};

}  // namespace winnow
