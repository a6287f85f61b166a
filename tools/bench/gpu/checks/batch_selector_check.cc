#include "tools/bench/gpu/checks/batch_selector_check.h"

#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "cache_rank/select/device/device_index_selector.h"
#include "common/selection/presets.h"
#include "tools/bench/gpu/checks/selection_reference.h"

namespace winnow {
namespace {

constexpr KvLayout kLayout = {
    .num_layers = 2, .num_query_heads = 10, .num_kv_heads = 2, .head_dim = 128, .dtype = Dtype::kBf16};
constexpr int kSteps = 3;

SelectionModel Model() {
  return {.group_size = kLayout.group_size(),
          .head_dim = kLayout.head_dim,
          .dtype = kLayout.dtype,
          .attention_scale = 1 / std::sqrt(static_cast<float>(kLayout.head_dim)),
          .rope = {}};
}

// A sequence of random rows in host memory.
class HostSequence {
 public:
  HostSequence(KvBlockPool& pool, uint64_t id, const SelectionSpec& spec, uint32_t rows, std::mt19937_64& random)
      : random_(random),
        sequence(id, spec,
                 SequenceKv::Create(&pool, CpuKernels().value(), kLayout, rows + kSteps, IndexLayoutFor(spec)).value(),
                 kLayout, WholeModel(kLayout), rows) {
    sequence.channel = 1;
    rows_.resize(kLayout.num_lists());
    Append(rows);
  }
  void Append(uint32_t count) {
    std::normal_distribution<float> normal(0, 2);
    const uint32_t first = sequence.kv.rows(0);
    for (int layer = 0; layer < kLayout.num_layers; ++layer) {
      std::vector<uint16_t> run;
      for (int head = 0; head < kLayout.num_kv_heads; ++head) {
        std::vector<uint16_t>& list = rows_[kLayout.list(layer, head)];
        const size_t begin = list.size();
        for (size_t i = 0; i < count * 2 * size_t{kLayout.head_dim}; ++i) {
          list.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random_)) >> 16));
        }
        run.insert(run.end(), list.begin() + static_cast<int64_t>(begin), list.end());
      }
      WINNOW_CHECK(sequence.kv.Append(layer, first, count, reinterpret_cast<const std::byte*>(run.data())).ok());
    }
  }
  const uint16_t* Key(size_t list, uint32_t position) const {
    return rows_[list].data() + position * 2 * size_t{kLayout.head_dim};
  }

 private:
  std::mt19937_64& random_;
  std::vector<std::vector<uint16_t>> rows_;  // [list][position][2 * head_dim]

 public:
  CachedSequence sequence;
};

std::string CheckItem(const HostSequence& host, const BatchSelector::Item& item, int layer) {
  for (int head = 0; head < kLayout.num_kv_heads; ++head) {
    const size_t list = kLayout.list(layer, head);
    if (!host.sequence.IsSparse(list, item.position)) continue;
    SelectionReference reference{
        .spec = &host.sequence.spec,
        .position = item.position,
        .budget = host.sequence.spec.budget_tokens,
        .queries = item.queries + static_cast<size_t>(head) * kLayout.group_size() * kLayout.head_dim,
        .group = kLayout.group_size(),
        .head_dim = kLayout.head_dim,
        .scale = Model().attention_scale,
        .query_rounding = 0x1.4p-11,
        .page_query_rounding = 0x1.4p-9};
    for (uint32_t p = 0; p < item.position; ++p) {
      reference.keys.push_back(ScoredKey(host.Key(list, p), kLayout.head_dim, /*fp8=*/true));
      reference.stored_keys.push_back(ScoredKey(host.Key(list, p), kLayout.head_dim, /*fp8=*/false));
    }
    const std::string wrong = reference.Check(item.layer->heads[head].selected);
    if (!wrong.empty()) return absl::StrCat("position ", item.position, " layer ", layer, ": ", wrong);
  }
  return {};
}

}  // namespace

void CheckBatchSelector(GpuContext& gpu) {
  absl::StatusOr<std::unique_ptr<device::Device>> device = gpu.table.open_device(gpu.device.ordinal());
  WINNOW_CHECK(device.ok());
  absl::StatusOr<std::unique_ptr<DeviceIndexSelector>> selector =
      DeviceIndexSelector::Create(&gpu.table, *std::move(device), kLayout, Model(),
                                  {.memory_bytes = size_t{64} << 20, .max_sequences = 4, .max_positions = 8192});
  if (!selector.ok()) return gpu.report.Fail("batch selector", std::string(selector.status().message()));
  const auto pool = KvBlockPool::Create(size_t{256} << 20, kLayout).value();

  std::vector<SelectionSpec> specs(3, FindPreset("winnow").value());
  specs[1].policy = Policy::kTopK;
  specs[2].policy = Policy::kTopK;  // as the one before: one launch
  for (SelectionSpec& spec : specs) {
    spec.budget_tokens = 384;
    spec.min_candidate_tokens = 1024;  // of all but the shortest a part is scored
    spec.score_all_below_tokens = 1500;
  }
  std::vector<std::unique_ptr<HostSequence>> hosts;
  for (size_t i = 0; i < specs.size(); ++i) {
    hosts.push_back(
        std::make_unique<HostSequence>(*pool, i + 1, specs[i], 1501 + 700 * static_cast<uint32_t>(i), gpu.random));
    if (!(*selector)->Takes(hosts.back()->sequence)) return gpu.report.Fail("batch selector", "takes no sequence");
  }
  const uint64_t free_blocks = (*selector)->free_blocks();
  std::normal_distribution<float> normal;
  std::string wrong;
  for (int step = 0; step < kSteps; ++step) {
    // In the middle another rank takes one over: its index is made anew.
    if (step == 1) ++hosts[1]->sequence.attach_epoch;
    for (int layer = 0; layer < kLayout.num_layers; ++layer) {
      std::vector<std::vector<float>> queries(hosts.size());
      std::vector<BatchSelector::Item> items;
      for (size_t i = 0; i < hosts.size(); ++i) {
        for (int f = 0; f < kLayout.num_query_heads * kLayout.head_dim; ++f) queries[i].push_back(normal(gpu.random));
        CachedSequence& sequence = hosts[i]->sequence;
        WINNOW_CHECK((*selector)->Takes(sequence));
        items.push_back({&sequence, &sequence.layers[layer], sequence.kv.rows(layer), queries[i].data()});
      }
      if (const absl::Status status = (*selector)->Select(layer, items); !status.ok()) {
        return gpu.report.Fail("batch selector", std::string(status.message()));
      }
      for (size_t i = 0; i < hosts.size(); ++i) {
        if (wrong.empty()) wrong = CheckItem(*hosts[i], items[i], layer);
      }
    }
    for (const auto& host : hosts) host->Append(1);
  }
  if (wrong.empty()) {
    gpu.report.Check("batch selector", 0, 0);
  } else {
    gpu.report.Fail("batch selector", wrong);
  }
  (*selector)->Forget(2);
  gpu.report.Check("batch selector gives blocks back", (*selector)->free_blocks() > free_blocks ? 0 : 1, 0);
}

}  // namespace winnow
