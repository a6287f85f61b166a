#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "cache_rank/select/host/select_union.h"
#include "cache_rank/store/residency.h"
#include "cache_rank/store/sequence_kv.h"
#include "common/selection/presets.h"

// What the cache rank does per layer and decode row at 8 layers, 2 kv heads of 4 query heads, head_dim 64, bf16, budget
// 2048: one core. Layers take turns, so keys come from memory as they do in a step.

namespace winnow {
namespace {

constexpr KvLayout kLayout{
    .num_layers = 8, .num_query_heads = 8, .num_kv_heads = 2, .head_dim = 64, .dtype = Dtype::kBf16};

struct Stored {
  Stored(uint32_t rows, const IndexLayout& index)
      : kernels(CpuKernels().value()),
        pool(KvBlockPool::Create(rows * kLayout.token_bytes() * 3 + (size_t{64} << 20), kLayout).value()),
        kv(SequenceKv::Create(pool.get(), kernels, kLayout, rows + 1, index).value()) {
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

// The ways of selecting that are timed.
constexpr const char* kWays[] = {"token",        "int8", "two-stage",  "two-stage int8", "minmax",
                                 "cuboid",       "mass", "mass bound", "hierarchical",   "hierarchical per query head",
                                 "preset winnow"};
SelectionSpec SpecOf(int way) {
  if (way == 10) return FindPreset("winnow").value();
  SelectionSpec spec;
  if (way == 1 || way == 3) spec.key_copy = KeyCopy::kInt8;
  if (way == 2 || way == 3) spec.scorer = Scorer::kTwoStage, spec.budget_tokens = 1024;
  if (way == 4) spec.scorer = Scorer::kPageMinmax;
  if (way >= 5 && way <= 7) spec.scorer = Scorer::kPageCuboid, spec.page_tokens = 32;
  if (way == 6 || way == 7) spec.policy = Policy::kMass;
  if (way == 7) spec.stop_rule = StopRule::kBound;
  if (way >= 8) spec.scorer = Scorer::kHierarchical, spec.budget_tokens = 4096;
  if (way == 9) spec.list_per = ListPer::kQueryHead;
  return spec;
}

// One layer of one row: both kv heads, measuring the mass of the position before never (0), always (1) or every n-th
// time. Bytes are those of keys and page bounds that were read.
void SelectLayer(benchmark::State& state) {
  const uint32_t position = static_cast<uint32_t>(state.range(0));
  const int mass_interval = static_cast<int>(state.range(1));
  static std::unique_ptr<Stored> stored;
  static uint32_t stored_rows = 0;
  const SelectionSpec spec = SpecOf(static_cast<int>(state.range(2)));
  if (stored_rows != position || stored->kv.index_layout() != IndexLayoutFor(spec)) {
    stored.reset();
    stored = std::make_unique<Stored>(position, IndexLayoutFor(spec));
    stored_rows = position;
  }
  SelectScratch scratch;
  std::vector<std::vector<uint32_t>> selected(kLayout.num_layers * kLayout.num_kv_heads);
  std::vector<std::vector<QueryHeadMask>> members(selected.size());
  int layer = 0;
  int step = 0;
  for (auto _ : state) {
    const bool measure = mass_interval != 0 && step % mass_interval == 0;
    for (int head = 0; head < kLayout.num_kv_heads; ++head) {
      const size_t offset = head * kLayout.group_size() * kLayout.head_dim;
      HeadQuestion question{.spec = &spec,
                            .position = position,
                            .budget_tokens = spec.budget_tokens,
                            .index = stored->kv.index(layer, head),
                            .target = stored->queries.data() + offset};
      if (measure) {
        question.measured = stored->queries.data() + kLayout.num_query_heads * kLayout.head_dim + offset;
        question.measured_position = position - 1;
      }
      const int list = layer * kLayout.num_kv_heads + head;
      benchmark::DoNotOptimize(
          SelectUnion(*stored->kernels, stored->model, question, scratch, &selected[list], &members[list]));
    }
    layer = (layer + 1) % kLayout.num_layers;
    step += layer == 0 ? 1 : 0;
  }
  state.SetBytesProcessed(static_cast<int64_t>(scratch.scored_key_bytes));
  state.SetLabel(absl::StrCat(AbslSv(stored->kernels->name), " ", kWays[state.range(2)]));
}
BENCHMARK(SelectLayer)
    ->ArgsProduct({{4096, 16384, 32768}, {0, 1, 8}, {0}})
    ->ArgsProduct({{16384, 32768}, {0, 8}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}})
    ->ArgNames({"rows", "mass", "way"})
    ->Unit(benchmark::kMicrosecond);

// Slots for one kv head's selection against a pool of 4 x 2048 rows; a third of the selection changes each time. So
// many heads take turns.
void UpdateResidency(benchmark::State& state) {
  std::vector<HeadResidency> heads(state.range(0));
  for (HeadResidency& head : heads) {
    head.Reset(32768);
    head.Resize(8192);
  }
  std::vector<std::vector<uint32_t>> selections(16);
  std::mt19937 random(2);
  for (auto& selection : selections) {
    for (uint32_t p = 4; p < 32000; ++p) {
      if (p % 24 == 0 || random() % 48 == 0) selection.push_back(p);
    }
    selection.resize(1950);
  }
  const KernelTable& kernels = *CpuKernels().value();
  ScratchBuffer<uint32_t> scratch;
  HeadDelta delta;
  size_t i = 0;
  for (auto _ : state) {
    const auto position = 32000 + static_cast<uint32_t>(i / heads.size() % 700);
    heads[i % heads.size()].Update(kernels, selections[position % selections.size()], position, 128, scratch, &delta);
    ++i;
    benchmark::DoNotOptimize(delta.streamed.data());
  }
}
BENCHMARK(UpdateResidency)->Arg(1)->Arg(320)->Arg(2500)->ArgName("heads")->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace winnow

BENCHMARK_MAIN();
