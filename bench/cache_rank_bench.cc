#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "cache_rank/residency.h"
#include "cache_rank/select_head.h"
#include "cache_rank/sequence_kv.h"

// What the cache rank does per layer and decode row at 8 layers, 2 kv heads of 4 query heads, head_dim 64, bf16, budget
// 2048: one core. Layers take turns, so keys come from memory as they do in a step.

namespace winnow {
namespace {

constexpr KvLayout kLayout{
    .num_layers = 8, .num_query_heads = 8, .num_kv_heads = 2, .head_dim = 64, .dtype = Dtype::kBf16};

struct Stored {
  explicit Stored(uint32_t rows)
      : kernels(CpuKernels().value()),
        pool(KvBlockPool::Create(rows * kLayout.token_bytes() * 2 + (size_t{64} << 20), kLayout).value()),
        kv(SequenceKv::Create(pool.get(), kernels, kLayout, rows + 1).value()) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> chunk(kLayout.num_kv_heads * kBlockTokens * 2 * kLayout.head_dim);
    for (int layer = 0; layer < kLayout.num_layers; ++layer) {
      for (uint32_t first = 0; first + kBlockTokens <= rows; first += kBlockTokens) {
        for (uint16_t& value : chunk) {
          const float x = normal(random);
          uint32_t bits;
          std::memcpy(&bits, &x, sizeof bits);
          value = static_cast<uint16_t>(bits >> 16);
        }
        if (!kv.Append(layer, first, kBlockTokens, reinterpret_cast<const std::byte*>(chunk.data())).ok()) std::abort();
      }
    }
    for (int i = 0; i < 2 * kLayout.num_query_heads * kLayout.head_dim; ++i) queries.push_back(normal(random));
    model = {.group_size = kLayout.group_size(),
             .head_dim = kLayout.head_dim,
             .dtype = kLayout.dtype,
             .attention_scale = 0.125f,
             .rope = {}};
  }
  const KernelTable* kernels;
  std::unique_ptr<KvBlockPool> pool;
  SequenceKv kv;
  std::vector<float> queries;
  SelectionModel model;
};

// One layer of one row: both kv heads, measuring the mass of the position before never (0), always (1) or every n-th
// time.
void SelectLayer(benchmark::State& state) {
  const uint32_t position = static_cast<uint32_t>(state.range(0));
  const int mass_interval = static_cast<int>(state.range(1));
  static std::unique_ptr<Stored> stored;
  static uint32_t stored_rows = 0;
  if (stored_rows != position) {
    stored.reset();
    stored = std::make_unique<Stored>(position);
    stored_rows = position;
  }
  SelectionSpec spec;
  SelectScratch scratch;
  std::vector<std::vector<uint32_t>> selected(kLayout.num_layers * kLayout.num_kv_heads);
  int layer = 0;
  int step = 0;
  for (auto _ : state) {
    const bool measure = mass_interval != 0 && step % mass_interval == 0;
    for (int head = 0; head < kLayout.num_kv_heads; ++head) {
      const size_t offset = head * kLayout.group_size() * kLayout.head_dim;
      HeadQuestion question{.spec = &spec,
                            .position = position,
                            .budget_tokens = spec.budget_tokens,
                            .tiles = stored->kv.tiles(layer, head),
                            .target = stored->queries.data() + offset};
      if (measure) {
        question.measured = stored->queries.data() + kLayout.num_query_heads * kLayout.head_dim + offset;
        question.measured_position = position - 1;
      }
      benchmark::DoNotOptimize(SelectHead(*stored->kernels, stored->model, question, scratch,
                                          &selected[layer * kLayout.num_kv_heads + head]));
    }
    layer = (layer + 1) % kLayout.num_layers;
    step += layer == 0 ? 1 : 0;
  }
  const double key_bytes =
      static_cast<double>(position) * kLayout.num_kv_heads * kLayout.head_dim * DtypeBytes(kLayout.dtype);
  state.SetBytesProcessed(static_cast<int64_t>(key_bytes * static_cast<double>(state.iterations())));
  state.SetLabel(std::string(stored->kernels->name));
}
BENCHMARK(SelectLayer)
    ->ArgsProduct({{4096, 16384, 32768}, {0, 1, 8}})
    ->ArgNames({"rows", "mass"})
    ->Unit(benchmark::kMicrosecond);

// Diff of one kv head's selection against a pool of 2 x 2048 rows; a third of the selection changes each time.
void UpdateResidency(benchmark::State& state) {
  HeadResidency residency;
  residency.Reset(16384);
  residency.Resize(4096);
  std::vector<std::vector<uint32_t>> selections(16);
  std::mt19937 random(2);
  for (auto& selection : selections) {
    for (uint32_t p = 4; p < 16000; ++p) {
      if (p % 12 == 0 || random() % 24 == 0) selection.push_back(p);
    }
    selection.resize(1950);
  }
  HeadDelta delta;
  size_t i = 0;
  for (auto _ : state) {
    residency.Update(selections[i++ % selections.size()], 16384, 128, &delta);
    benchmark::DoNotOptimize(delta.streamed.data());
  }
}
BENCHMARK(UpdateResidency)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace winnow

BENCHMARK_MAIN();
