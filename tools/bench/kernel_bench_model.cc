#include "tools/bench/kernel_bench_model.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/machine/best_seconds.h"
#include "tools/machine/huge_page_memory.h"

namespace winnow {
namespace {

using Memory = HugePageMemory;

struct Model {
  static constexpr int kLayers = 8;
  static constexpr int kHidden = 512;
  static constexpr int kFfn = 1408;
  static constexpr int kQueryHeads = 8;
  static constexpr int kKvHeads = 2;
  static constexpr int kHeadDim = 64;
  static constexpr int kQkv = (kQueryHeads + 2 * kKvHeads) * kHeadDim;
  static constexpr int kVocab = 4096;

  explicit Model(int rows)
      : weights(kLayers * (PackedBytes(kQkv, kHidden, Dtype::kBf16) + PackedBytes(kHidden, kHidden, Dtype::kBf16) +
                           PackedBytes(2 * kFfn, kHidden, Dtype::kBf16) + PackedBytes(kHidden, kFfn, Dtype::kBf16)) +
                PackedBytes(kVocab, kHidden, Dtype::kBf16)),
        norm(kHidden, 0.02f),
        inv_freq(kHeadDim / 2, 0.1f),
        positions(rows, 5000),
        x(static_cast<size_t>(rows) * kHidden, 0.1f),
        qkv(static_cast<size_t>(rows) * kQkv),
        q(static_cast<size_t>(rows) * kHidden),
        attended(q.size()),
        hidden(static_cast<size_t>(rows) * 2 * kFfn),
        logits(kVocab * 8),
        new_kv(static_cast<size_t>(rows) * kKvHeads * 2 * kHeadDim) {
    weights.FillRandom(Dtype::kBf16);
  }

  Memory weights;
  std::vector<float> norm, inv_freq;
  std::vector<uint32_t> positions;
  std::vector<float> x, qkv, q, attended, hidden, logits;
  std::vector<uint16_t> new_kv;
};

template <typename Attend>
void ForwardPass(const KernelTable& kernels, Executor& executor, Model& m, int rows,
                 void (*matmul)(Executor&, const MatmulParams&), int logit_rows, const Attend& attend) {
  const char* next = static_cast<const char*>(m.weights.data());
  const auto multiply = [&](const std::vector<float>& in, int k, InputTransform transform, int n, bool accumulate,
                            std::vector<float>& out, int num_rows) {
    MatmulParams params;
    params.x = in.data();
    params.x_stride = transform == InputTransform::kSiluMul ? 2 * k : k;
    params.num_rows = num_rows;
    params.transform = transform;
    params.norm_weight = m.norm.data();
    params.norm_epsilon = 1e-6f;
    params.weight = {next, n, k, Dtype::kBf16};
    params.accumulate = accumulate;
    params.y = out.data();
    params.y_stride = n;
    next += PackedBytes(n, k, Dtype::kBf16);
    matmul(executor, params);
  };
  for (int layer = 0; layer < Model::kLayers; ++layer) {
    multiply(m.x, Model::kHidden, InputTransform::kRmsNorm, Model::kQkv, false, m.qkv, rows);
    RopeAppendParams rope;
    rope.qkv = m.qkv.data();
    rope.qkv_stride = Model::kQkv;
    rope.num_rows = rows;
    rope.num_query_heads = Model::kQueryHeads;
    rope.num_kv_heads = Model::kKvHeads;
    rope.head_dim = Model::kHeadDim;
    rope.positions = m.positions.data();
    rope.rope_inv_freq = m.inv_freq.data();
    rope.q = m.q.data();
    rope.kv_rows = m.new_kv.data();
    kernels.rope_append(executor, rope);
    attend(layer);
    multiply(m.attended, Model::kHidden, InputTransform::kNone, Model::kHidden, true, m.x, rows);
    multiply(m.x, Model::kHidden, InputTransform::kRmsNorm, 2 * Model::kFfn, false, m.hidden, rows);
    multiply(m.hidden, Model::kFfn, InputTransform::kSiluMul, Model::kHidden, true, m.x, rows);
  }
  multiply(m.x, Model::kHidden, InputTransform::kRmsNorm, Model::kVocab, false, m.logits, logit_rows);
}

}  // namespace

ModelPass TimeDecodePass(const KernelTable& kernels, Executor& executor, int rows, int context) {
  Model m(rows);
  const int num_lists = rows * Model::kKvHeads;
  const size_t layer_bytes = static_cast<size_t>(num_lists) * context * 2 * Model::kHeadDim * 2;
  Memory pool(Model::kLayers * layer_bytes);
  pool.FillRandom(Dtype::kBf16);
  std::vector<uint32_t> slots(static_cast<size_t>(num_lists) * context);
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<uint32_t>(i);
  std::vector<const uint32_t*> lists;
  for (int i = 0; i < num_lists; ++i) lists.push_back(slots.data() + static_cast<size_t>(i) * context);
  std::vector<uint32_t> counts(num_lists, context);
  constexpr int kGroup = Model::kQueryHeads / Model::kKvHeads;
  Memory scratch(DecodeAttentionScratchBytes(slots.size() * kGroup, num_lists * kGroup, Model::kHeadDim));
  const double seconds = BestSeconds([&] {
    ForwardPass(kernels, executor, m, rows, kernels.decode_matmul, rows, [&](int layer) {
      DecodeAttentionParams params;
      params.q = m.q.data();
      params.num_rows = rows;
      params.num_query_heads = Model::kQueryHeads;
      params.num_kv_heads = Model::kKvHeads;
      params.head_dim = Model::kHeadDim;
      params.scale = 0.125f;
      params.slot_pool = static_cast<char*>(pool.data()) + layer * layer_bytes;
      params.slots = lists.data();
      params.slot_counts = counts.data();
      params.out = m.attended.data();
      params.scratch = scratch.data();
      kernels.decode_attention(executor, params);
    });
  });
  return {.seconds = seconds, .bytes = static_cast<double>(m.weights.bytes() + pool.bytes())};
}

ModelPass TimePrefillPass(const KernelTable& kernels, Executor& executor, int rows, int first) {
  Model m(rows);
  const int length = first + rows;
  Memory kv(static_cast<size_t>(Model::kKvHeads) * length * 2 * Model::kHeadDim * 2);
  kv.FillRandom(Dtype::kBf16);
  const double seconds = BestSeconds(
      [&] {
        ForwardPass(kernels, executor, m, rows, kernels.prefill_matmul, 1, [&](int) {
          PrefillAttentionParams params;
          params.q = m.q.data();
          params.num_queries = rows;
          params.first_position = first;
          params.num_query_heads = Model::kQueryHeads;
          params.num_kv_heads = Model::kKvHeads;
          params.head_dim = Model::kHeadDim;
          params.scale = 0.125f;
          params.kv = kv.data();
          params.kv_head_stride = length;
          params.out = m.attended.data();
          kernels.prefill_attention(executor, params);
        });
      },
      0.01);
  return {.seconds = seconds, .bytes = 0};
}

}  // namespace winnow
