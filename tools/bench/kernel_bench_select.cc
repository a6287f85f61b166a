#include "tools/bench/kernel_bench_select.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tools/machine/best_seconds.h"
#include "tools/machine/huge_page_memory.h"
#include "tools/machine/machine_read.h"

namespace winnow {
namespace {

struct Heads {
  int queries;
  int kv;
  int dim;
};

// Index tiles of one layer or more, in a shuffled order of places as blocks of a used pool have.
class LayerKeys {
 public:
  LayerKeys(const KernelTable& kernels, const Heads& heads, int num_keys, Dtype dtype, size_t at_least_bytes)
      : tiles_per_head_(num_keys / kBlockTokens),
        layer_bytes_(static_cast<size_t>(heads.kv) * tiles_per_head_ * IndexTileBytes(heads.dim, dtype)),
        num_layers_((at_least_bytes + layer_bytes_ - 1) / layer_bytes_),
        kv_heads_(heads.kv),
        memory_(num_layers_ * layer_bytes_) {
    const size_t tile_bytes = IndexTileBytes(heads.dim, dtype);
    for (size_t at = 0; at < num_layers_ * layer_bytes_; at += tile_bytes) {
      tiles_.push_back(static_cast<char*>(memory_.data()) + at);
    }
    std::mt19937 random(1);
    std::shuffle(tiles_.begin(), tiles_.end(), random);
    std::vector<float> rows(kBlockTokens * 2 * heads.dim);
    std::vector<uint16_t> narrow(rows.size());
    for (const void* tile : tiles_) {
      for (size_t i = 0; i < rows.size(); ++i) {  // the sum of two uniform numbers
        const uint32_t bits = random();
        rows[i] = (static_cast<float>(bits & 0xffff) + static_cast<float>(bits >> 16)) * 0x1p-15f - 2;
        narrow[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(rows[i]) >> 16);
      }
      const bool bf16 = dtype == Dtype::kBf16;
      const bool quantised = dtype == Dtype::kI8 || dtype == Dtype::kI4;
      kernels.index_keys({.rows = bf16 ? static_cast<const void*>(narrow.data()) : rows.data(),
                          .num_rows = kBlockTokens,
                          .head_dim = heads.dim,
                          .dtype = bf16 ? Dtype::kBf16 : Dtype::kF32,
                          .tile = const_cast<void*>(tile),
                          .tile_dtype = quantised ? std::optional(dtype) : std::nullopt});
    }
  }

  int num_layers() const { return static_cast<int>(num_layers_); }
  size_t layer_bytes() const { return layer_bytes_; }
  const void* const* tiles(int layer, int kv_head) const {
    return tiles_.data() + (static_cast<size_t>(layer) * kv_heads_ + kv_head) * tiles_per_head_;
  }

 private:
  size_t tiles_per_head_;
  size_t layer_bytes_;
  size_t num_layers_;
  int kv_heads_;
  HugePageMemory memory_;
  std::vector<const void*> tiles_;
};

class LayerSelect {
 public:
  LayerSelect(const KernelTable& kernels, const Heads& heads, int num_keys, Dtype dtype, size_t at_least_bytes)
      : kernels_(kernels),
        heads_(heads),
        num_keys_(num_keys),
        dtype_(dtype),
        group_(heads.queries / heads.kv),
        stride_(num_keys + 16),
        keys_(kernels, heads, num_keys, dtype, at_least_bytes),
        queries_(heads.queries * heads.dim * 4),
        weights_(group_ * stride_ * 4),
        run_scales_(group_ * SoftmaxRuns(num_keys) * 4),
        run_sums_(run_scales_.bytes()),
        lse_(group_ * 4),
        importance_(num_keys * 4),
        top_k_scratch_(TopKScratchWords(num_keys)),
        selected_(num_keys) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal(0, 2);
    for (int i = 0; i < heads.queries * heads.dim; ++i) queries_.floats()[i] = normal(random);
  }

  const LayerKeys& keys() const { return keys_; }

  void Softmax(int layer, int head) {
    kernels_.key_softmax({.score = {.tiles = keys_.tiles(layer, head),
                                    .num_keys = num_keys_,
                                    .head_dim = heads_.dim,
                                    .dtype = dtype_,
                                    .queries = queries_.floats() + head * group_ * heads_.dim,
                                    .num_queries = group_,
                                    .scale = 0.125f,
                                    .scores = weights_.floats(),
                                    .scores_stride = stride_},
                          .run_scales = run_scales_.floats(),
                          .lse = lse_.floats(),
                          .scratch = run_sums_.floats()});
  }
  void Sum() {
    kernels_.softmax_sum({.weights = weights_.floats(),
                          .weights_stride = stride_,
                          .run_scales = run_scales_.floats(),
                          .num_queries = group_,
                          .num_keys = num_keys_,
                          .first = 0,
                          .last = num_keys_,
                          .importance = importance_.floats()});
  }
  void Pick(uint32_t budget) {
    kernels_.top_k({.values = importance_.floats(),
                    .first = 0,
                    .last = static_cast<uint32_t>(num_keys_),
                    .k = budget,
                    .indices = selected_.data(),
                    .scratch = top_k_scratch_.data()});
  }

  double Seconds(uint32_t budget) {
    return BestSeconds([&] {
             for (int layer = 0; layer < keys_.num_layers(); ++layer) {
               for (int head = 0; head < heads_.kv; ++head) {
                 Softmax(layer, head);
                 Sum();
                 Pick(budget);
               }
             }
           }) /
           keys_.num_layers();
  }
  // Of a whole layer's heads.
  double SumSeconds() {
    return heads_.kv * BestSeconds([&] { Sum(); }, 0.01);
  }
  double PickSeconds(uint32_t budget) {
    return heads_.kv * BestSeconds([&] { Pick(budget); }, 0.01);
  }

 private:
  const KernelTable& kernels_;
  const Heads heads_;
  const int num_keys_;
  const Dtype dtype_;
  const int group_;
  const int64_t stride_;
  LayerKeys keys_;
  HugePageMemory queries_, weights_, run_scales_, run_sums_, lse_, importance_;
  std::vector<uint32_t> top_k_scratch_;
  std::vector<uint32_t> selected_;
};

}  // namespace

void RunSelectBench(const KernelTable& kernels, Executor& one_thread) {
  constexpr size_t kReadBytes = size_t{256} << 20;
  const double read_s_per_byte = MachineReadSeconds(kernels, one_thread, kReadBytes) / kReadBytes;
  std::printf("\n%s, selection of one layer, 1 thread; memory read at %.1f GB/s\n", std::string(kernels.name).c_str(),
              1e-9 / read_s_per_byte);
  std::printf("  %-23s %14s %14s %14s %12s %12s %12s\n", "", "budget 2048", "budget 512", "2048, cached", "of it sum",
              "and top_k", "keys read");
  for (const Heads& heads : {Heads{4, 2, 64}, {8, 2, 64}, {40, 8, 128}}) {
    for (int num_keys : {4096, 16384, 32768}) {
      for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kI8, Dtype::kI4}) {
        constexpr size_t kBeyondCaches = size_t{96} << 20;
        LayerSelect cached(kernels, heads, num_keys, dtype, /*at_least_bytes=*/1);
        LayerSelect select(kernels, heads, num_keys, dtype, kBeyondCaches);
        char what[64];
        std::snprintf(what, sizeof what, "%dq/%dkv/%d %6d %s", heads.queries, heads.kv, heads.dim, num_keys,
                      DtypeName(dtype));
        std::printf("  %-23s", what);
        const double read = select.keys().layer_bytes() * read_s_per_byte;
        for (double seconds : {select.Seconds(2048), select.Seconds(512), cached.Seconds(2048)}) {
          std::printf(" %11.1f us", seconds * 1e6);
        }
        for (double seconds : {select.SumSeconds(), select.PickSeconds(2048), read}) {
          std::printf(" %9.1f us", seconds * 1e6);
        }
        std::printf("\n");
      }
    }
  }
}

}  // namespace winnow
