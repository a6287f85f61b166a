// Speed of the CPU kernels beside what the machine can do, measured in the same run.
//
//   kernel_bench [isa] [threads]     (auto, 1 and 2)
//   kernel_bench [isa] select        selection of a layer, on one thread
//
// Times are the best of several runs, as other processes share the machine.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "tools/bench/kernel_bench_model.h"
#include "tools/bench/kernel_bench_onednn.h"
#include "tools/bench/kernel_bench_select.h"
#include "tools/machine/best_seconds.h"
#include "tools/machine/huge_page_memory.h"
#include "tools/machine/machine_read.h"

namespace winnow {
namespace {

using Memory = HugePageMemory;

// Random bf16 index tiles, and queries to score them with.
struct KeyTable {
  KeyTable(int num_keys, int head_dim, int num_queries)
      : num_keys(num_keys),
        head_dim(head_dim),
        num_queries(num_queries),
        keys(static_cast<size_t>(num_keys) * head_dim * 2),
        queries(num_queries * head_dim * 4),
        scores(static_cast<size_t>(num_queries) * num_keys * 4) {
    keys.FillRandom(Dtype::kBf16);
    queries.FillRandom(Dtype::kF32);
    const size_t tile_bytes = static_cast<size_t>(head_dim) * 64;
    for (int t = 0; t < num_keys / 32; ++t) tiles.push_back(static_cast<char*>(keys.data()) + t * tile_bytes);
  }

  KeyScoreParams Params() {
    return {.tiles = tiles.data(),
            .num_keys = num_keys,
            .head_dim = head_dim,
            .dtype = Dtype::kBf16,
            .queries = queries.floats(),
            .num_queries = num_queries,
            .scale = 0.125f,
            .scores = scores.floats(),
            .scores_stride = num_keys};
  }

  int num_keys, head_dim, num_queries;
  Memory keys, queries, scores;
  std::vector<const void*> tiles;
};

class Bench {
 public:
  Bench(const KernelTable& kernels, int threads)
      : kernels_(kernels), threads_(threads), executor_(kernels.new_executor(threads)) {}

  void RunAll() {
    std::printf("\n%s, %d thread(s)\n", std::string(kernels_.name).c_str(), threads_);
    Barrier();
    for (int mib : {48, 512}) ReadBandwidth(static_cast<size_t>(mib) << 20);
    for (auto [n, k] : {std::pair{768, 512}, {512, 512}, {2816, 512}, {512, 1408}, {4096, 512}, {10240, 10240}}) {
      DecodeMatmul(n, k, 1, Dtype::kBf16);
    }
    DecodeMatmul(4096, 4096, 1, Dtype::kF32);
    for (int rows : {4, 8, 16, 64}) DecodeMatmul(2816, 512, rows, Dtype::kBf16);
    for (Dtype dtype : {Dtype::kBf16, Dtype::kF8, Dtype::kI8, Dtype::kI4}) {
      for (int rows : {1, 2, 4, 8, 32}) DecodeMatmul(11008, 4096, rows, dtype);
    }
    for (auto [rows, context] : {std::pair{1, 64}, {1, 4096}, {1, 16384}, {8, 4096}}) {
      DecodeAttention(rows, context, 64, 4, Dtype::kBf16);
    }
    DecodeAttention(1, 16384, 128, 8, Dtype::kBf16);
    DecodeAttention(1, 4096, 128, 8, Dtype::kBf16);
    DecodeAttention(1, 4096, 128, 8, Dtype::kBf16, /*list_per_head=*/true);
    DecodeAttention(1, 16384, 64, 4, Dtype::kF32);
    for (auto [n, k] : {std::pair{768, 512}, {2816, 512}, {512, 1408}, {4096, 4096}})
      PrefillMatmul(512, n, k, Dtype::kBf16);
    PrefillMatmul(512, 2816, 512, Dtype::kF32);
    for (Dtype dtype : {Dtype::kBf16, Dtype::kF8, Dtype::kI4}) PrefillMatmul(256, 11008, 4096, dtype);
    PrefillAttention(512, 0, 64, 4);
    PrefillAttention(512, 3584, 64, 4);
    PrefillAttention(512, 3584, 128, 4);
    for (auto [rows, context] : {std::pair{1, 64}, {1, 16384}, {8, 4096}}) ModelDecodeStep(rows, context);
    for (int first : {0, 2048, 14336}) ModelPrefillChunk(2048, first);
    if (threads_ == 1) {
      for (int queries : {4, 8}) KeyScore(16384, 64, queries);
      for (int queries : {4, 8}) KeySoftmax(16384, 64, queries);
      for (Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
        for (auto [context, stride] : {std::pair{16384, 1}, {16384, 40}}) AttendBlocks(context, stride, 64, 4, dtype);
      }
      AttendBlocks(16384, 1, 128, 5, Dtype::kBf16);
      TopK(16384, 2048);
      TopK(4096, 1024);
      RopeAppend();
    }
  }

 private:
  void Report(const char* what, double seconds, double bytes, double flops, const char* note = "") {
    std::printf("  %-44s %9.2f us", what, seconds * 1e6);
    if (bytes > 0) std::printf("  %6.1f GB/s", bytes / seconds / 1e9);
    if (bytes > 0 && read_gb_s_ > 0) std::printf(" (%3.0f %% of read)", bytes / seconds / 1e7 / read_gb_s_);
    if (flops > 0) std::printf("  %7.1f GFLOP/s", flops / seconds / 1e9);
    std::printf("%s\n", note);
  }

  void Barrier() {
    const double seconds = BestSeconds([&] {
      for (int i = 0; i < 1000; ++i) {
        kernels_.parallel_for(
            *executor_, threads_, [](void*, int, int) {}, nullptr);
      }
    });
    Report("parallel_for of nothing", seconds / 1000, 0, 0);
  }

  // The 512 MiB figure is the yardstick for big matrices.
  void ReadBandwidth(size_t bytes) {
    const double seconds = MachineReadSeconds(kernels_, *executor_, bytes);
    char what[64];
    std::snprintf(what, sizeof what, "read %zu MiB", bytes >> 20);
    read_gb_s_ = 0;
    Report(what, seconds, static_cast<double>(bytes), 0);
    read_gb_s_ = bytes / seconds / 1e9;
  }

  // Of a quantised matrix some number that is a usual scale, zero and code alike.
  static void FillWeights(Memory& memory, size_t bytes, Dtype dtype) {
    if (IsQuantized(dtype)) {
      std::memset(memory.data(), 0x3c, bytes);
    } else {
      memory.FillRandom(dtype);
    }
  }

  void DecodeMatmul(int n, int k, int rows, Dtype dtype) {
    // Enough copies that weights come from memory (L3 at best), as in a model.
    PackedMatrix matrix{nullptr, n, k, dtype, IsQuantized(dtype) ? 128 : 0};
    const size_t bytes = PackedBytes(matrix);
    const size_t copies = std::max<size_t>(1, (size_t{48} << 20) / bytes);
    Memory weights(bytes * copies);
    FillWeights(weights, bytes * copies, dtype);
    Memory x(static_cast<size_t>(rows) * k * 4);
    x.FillRandom(Dtype::kF32);
    Memory y(static_cast<size_t>(rows) * n * 4);
    MatmulParams params;
    params.x = x.floats();
    params.x_stride = k;
    params.num_rows = rows;
    params.transform = InputTransform::kRmsNorm;
    params.norm_weight = x.floats();
    params.norm_epsilon = 1e-6f;
    params.y = y.floats();
    params.y_stride = n;
    const double seconds = BestSeconds([&] {
      for (size_t i = 0; i < copies; ++i) {
        matrix.data = static_cast<char*>(weights.data()) + i * bytes;
        params.weight = matrix;
        kernels_.decode_matmul(*executor_, params);
      }
    });
    char what[64];
    std::snprintf(what, sizeof what, "decode_matmul %s %dx%d rows %d", DtypeName(dtype), n, k, rows);
    Report(what, seconds / copies, static_cast<double>(bytes), 2.0 * rows * n * k);
  }

  void PrefillMatmul(int rows, int n, int k, Dtype dtype) {
    const PackedMatrix shape{nullptr, n, k, dtype, IsQuantized(dtype) ? 128 : 0};
    Memory weights(PackedBytes(shape));
    FillWeights(weights, PackedBytes(shape), dtype);
    Memory x(static_cast<size_t>(rows) * k * 4);
    x.FillRandom(Dtype::kF32);
    Memory y(static_cast<size_t>(rows) * n * 4);
    MatmulParams params;
    params.x = x.floats();
    params.x_stride = k;
    params.num_rows = rows;
    params.transform = InputTransform::kRmsNorm;
    params.norm_weight = x.floats();
    params.norm_epsilon = 1e-6f;
    params.weight = shape;
    params.weight.data = weights.data();
    params.y = y.floats();
    params.y_stride = n;
    const double seconds = BestSeconds([&] { kernels_.prefill_matmul(*executor_, params); });
    const Dtype bare_dtype = IsQuantized(dtype) ? Dtype::kBf16 : dtype;
    const double bare = OneDnnMatmulSeconds(rows, n, k, bare_dtype, threads_);
    const double bare_f32 = OneDnnMatmulSeconds(rows, n, k, Dtype::kF32, threads_);
    char what[64];
    std::snprintf(what, sizeof what, "prefill_matmul %s %dx%d rows %d", DtypeName(dtype), n, k, rows);
    char note[96];
    std::snprintf(note, sizeof note, "  (%.0f %% of oneDNN %s, %.0f %% of oneDNN f32)", 100 * bare / seconds,
                  DtypeName(bare_dtype), 100 * bare_f32 / seconds);
    Report(what, seconds, 0, 2.0 * rows * n * k, note);
  }

  // With list_per_head each query head reads the same slots by a list of its own, as if heads shared no rows.
  void DecodeAttention(int rows, int context, int head_dim, int group, Dtype dtype, bool list_per_head = false) {
    constexpr int kKvHeads = 2;
    const int num_lists = rows * kKvHeads;
    const size_t row_bytes = 2 * head_dim * DtypeBytes(dtype);
    const size_t num_slots = static_cast<size_t>(num_lists) * context;
    // Several layers' worth, so that rows come from memory.
    const size_t copies = std::max<size_t>(1, (size_t{64} << 20) / (num_slots * row_bytes));
    Memory pool(copies * num_slots * row_bytes);
    pool.FillRandom(dtype);
    // Runs of a page of 64 slots in a shuffled order of pages.
    std::mt19937 random(2);
    std::vector<uint32_t> pages((num_slots + 63) / 64);
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<uint32_t>(i);
    std::shuffle(pages.begin(), pages.end(), random);
    std::vector<uint32_t> slots(num_slots);
    for (size_t i = 0; i < num_slots; ++i) slots[i] = pages[i / 64] * 64 + i % 64;
    std::vector<const uint32_t*> lists;
    const int lists_per_group = list_per_head ? group : 1;
    for (int i = 0; i < num_lists * lists_per_group; ++i) {
      lists.push_back(slots.data() + static_cast<size_t>(i / lists_per_group) * context);
    }
    std::vector<uint32_t> counts(lists.size(), context), list_heads(lists.size(), group / lists_per_group);
    Memory q(static_cast<size_t>(num_lists) * group * head_dim * 4);
    q.FillRandom(Dtype::kF32);
    Memory out(q.bytes());
    Memory scratch(DecodeAttentionScratchBytes(num_slots * group, static_cast<size_t>(num_lists) * group, head_dim));
    DecodeAttentionParams params;
    params.q = q.floats();
    params.num_rows = rows;
    params.num_query_heads = kKvHeads * group;
    params.num_kv_heads = kKvHeads;
    params.head_dim = head_dim;
    params.scale = 0.125f;
    params.kv_dtype = dtype;
    params.slots = lists.data();
    params.slot_counts = counts.data();
    params.list_heads = list_heads.data();
    params.out = out.floats();
    params.scratch = scratch.data();
    const double seconds = BestSeconds([&] {
      for (size_t i = 0; i < copies; ++i) {
        params.slot_pool = static_cast<char*>(pool.data()) + i * num_slots * row_bytes;
        kernels_.decode_attention(*executor_, params);
      }
    });
    char what[80];
    std::snprintf(what, sizeof what, "decode_attention %s %dx%d hd %d group %d%s", DtypeName(dtype), rows, context,
                  head_dim, group, list_per_head ? ", a list per head" : "");
    Report(what, seconds / copies, static_cast<double>(num_slots * row_bytes), 4.0 * num_slots * group * head_dim);
  }

  void PrefillAttention(int queries, int first, int head_dim, int group) {
    constexpr int kKvHeads = 2;
    const int length = first + queries;
    Memory q(static_cast<size_t>(queries) * kKvHeads * group * head_dim * 4);
    q.FillRandom(Dtype::kF32);
    Memory out(q.bytes());
    Memory kv(static_cast<size_t>(kKvHeads) * length * 2 * head_dim * 2);
    kv.FillRandom(Dtype::kBf16);
    PrefillAttentionParams params;
    params.q = q.floats();
    params.num_queries = queries;
    params.first_position = first;
    params.num_query_heads = kKvHeads * group;
    params.num_kv_heads = kKvHeads;
    params.head_dim = head_dim;
    params.scale = 0.125f;
    params.kv = kv.data();
    params.kv_head_stride = length;
    params.out = out.floats();
    const double seconds = BestSeconds([&] { kernels_.prefill_attention(*executor_, params); });
    const double pairs = static_cast<double>(queries) * first + queries * (queries + 1.0) / 2;
    char what[64];
    std::snprintf(what, sizeof what, "prefill_attention %d after %d, hd %d group %d", queries, first, head_dim, group);
    Report(what, seconds, 0, 4.0 * pairs * kKvHeads * group * head_dim);
  }

  void KeyScore(int keys, int head_dim, int queries) {
    KeyTable table(keys, head_dim, queries);
    const KeyScoreParams params = table.Params();
    char what[64];
    std::snprintf(what, sizeof what, "key_score %d keys hd %d, %d queries", keys, head_dim, queries);
    const double seconds = BestSeconds([&] { kernels_.key_score(params); });
    Report(what, seconds, static_cast<double>(keys) * head_dim * 2, 2.0 * keys * head_dim * queries);
  }

  // Scores, softmaxes and their sum.
  void KeySoftmax(int keys, int head_dim, int queries) {
    KeyTable table(keys, head_dim, queries);
    Memory scales(queries * SoftmaxRuns(keys) * 4);
    Memory scratch(queries * SoftmaxRuns(keys) * 4);
    Memory lse(queries * 4);
    Memory importance(static_cast<size_t>(keys) * 4);
    const KeySoftmaxParams params{table.Params(), scales.floats(), lse.floats(), scratch.floats()};
    const SoftmaxSumParams sum{params.score.scores, keys, scales.floats(), queries, keys, 0, keys, importance.floats()};
    char what[64];
    std::snprintf(what, sizeof what, "key_softmax, _sum %d keys hd %d, %d queries", keys, head_dim, queries);
    const double seconds = BestSeconds([&] {
      kernels_.key_softmax(params);
      kernels_.softmax_sum(sum);
    });
    Report(what, seconds, static_cast<double>(keys) * head_dim * 2, 2.0 * keys * head_dim * queries);
  }

  // Every `stride`-th row of a context, as rows that were not sent lie.
  void AttendBlocks(int context, int stride, int head_dim, int queries, Dtype dtype) {
    const size_t block_bytes = size_t{kBlockTokens} * 2 * head_dim * DtypeBytes(dtype);
    const size_t num_blocks = context / kBlockTokens;
    const size_t copies = std::max<size_t>(1, (size_t{96} << 20) / (num_blocks * block_bytes));
    Memory rows(copies * num_blocks * block_bytes);
    rows.FillRandom(dtype);
    std::vector<const void*> blocks;
    for (size_t b = 0; b < copies * num_blocks; ++b) {
      blocks.push_back(static_cast<char*>(rows.data()) + b * block_bytes);
    }
    std::mt19937 random(4);
    std::shuffle(blocks.begin(), blocks.end(), random);
    std::vector<uint32_t> positions;
    for (int p = 0; p < context; p += stride) positions.push_back(p);
    Memory q(queries * head_dim * 4), o(queries * head_dim * 4), lse(queries * 4);
    q.FillRandom(Dtype::kF32);
    Memory scratch(AttendBlocksScratchBytes(queries, head_dim));
    const double seconds = BestSeconds([&] {
      for (size_t i = 0; i < copies; ++i) {
        kernels_.attend_blocks({.q = q.floats(),
                                .num_queries = queries,
                                .head_dim = head_dim,
                                .scale = 0.125f,
                                .blocks = blocks.data() + i * num_blocks,
                                .kv_dtype = dtype,
                                .positions = positions.data(),
                                .num_rows = static_cast<uint32_t>(positions.size()),
                                .o = o.floats(),
                                .lse = lse.floats(),
                                .scratch = scratch.data()});
      }
    });
    char what[80];
    std::snprintf(what, sizeof what, "attend_blocks %s %zu rows hd %d, %d queries", DtypeName(dtype), positions.size(),
                  head_dim, queries);
    Report(what, seconds / copies, static_cast<double>(positions.size() * block_bytes) / kBlockTokens,
           4.0 * positions.size() * queries * head_dim);
  }

  void TopK(uint32_t n, uint32_t k) {
    std::mt19937 random(3);
    std::lognormal_distribution<float> importance(-8, 2);  // what a softmax leaves
    std::vector<float> values(n);
    for (float& v : values) v = importance(random);
    std::vector<uint32_t> indices(k);
    std::vector<uint32_t> scratch(TopKScratchWords(n));
    const TopKParams params{values.data(), 0, n, k, indices.data(), scratch.data()};
    const double seconds = BestSeconds([&] { kernels_.top_k(params); });
    char what[64];
    std::snprintf(what, sizeof what, "top_k %u of %u", k, n);
    Report(what, seconds, 4.0 * n, 0);
  }

  void RopeAppend() {
    constexpr int kHeadDim = 64;
    std::vector<float> qkv(12 * kHeadDim, 0.5f);
    std::vector<float> inv_freq(kHeadDim / 2, 0.1f);
    std::vector<float> q(8 * kHeadDim);
    std::vector<uint16_t> kv(2 * 2 * kHeadDim);
    const uint32_t position = 5000;
    RopeAppendParams params;
    params.qkv = qkv.data();
    params.qkv_stride = 12 * kHeadDim;
    params.num_rows = 1;
    params.num_query_heads = 8;
    params.num_kv_heads = 2;
    params.head_dim = kHeadDim;
    params.positions = &position;
    params.rope_inv_freq = inv_freq.data();
    params.q = q.data();
    params.kv_rows = kv.data();
    const double seconds = BestSeconds([&] { kernels_.rope_append(*executor_, params); }, 0.01);
    Report("rope_append 1 row, 8 + 2 heads", seconds, 0, 0);
  }

  void ModelDecodeStep(int rows, int context) {
    const ModelPass pass = TimeDecodePass(kernels_, *executor_, rows, context);
    char what[64];
    std::snprintf(what, sizeof what, "bench model, decode step %d x %d", rows, context);
    ReportPass(what, pass, rows);
  }

  void ModelPrefillChunk(int rows, int first) {
    const ModelPass pass = TimePrefillPass(kernels_, *executor_, rows, first);
    char what[64];
    std::snprintf(what, sizeof what, "bench model, prefill %d after %d", rows, first);
    ReportPass(what, pass, rows);
  }

  void ReportPass(const char* what, const ModelPass& pass, int rows) {
    char note[64];
    std::snprintf(note, sizeof note, "  %.0f tokens/s", rows / pass.seconds);
    Report(what, pass.seconds, pass.bytes, 0, note);
  }

  const KernelTable& kernels_;
  const int threads_;
  std::unique_ptr<Executor> executor_;
  double read_gb_s_ = 0;
};

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  const auto kernels = winnow::CpuKernels(argc > 1 ? argv[1] : "auto");
  if (!kernels.ok()) {
    std::fprintf(stderr, "%s\n", std::string(kernels.status().message()).c_str());
    return 1;
  }
  if (argc > 2 && std::strcmp(argv[2], "select") == 0) {
    winnow::RunSelectBench(**kernels, *(*kernels)->new_executor(1));
    return 0;
  }
  if (argc > 2) {
    winnow::Bench(**kernels, std::atoi(argv[2])).RunAll();
    return 0;
  }
  for (int threads : {1, 2}) winnow::Bench(**kernels, threads).RunAll();
  return 0;
}
