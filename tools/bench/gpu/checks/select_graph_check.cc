#include "tools/bench/gpu/checks/select_graph_check.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "tools/bench/gpu/device_selection_cases.h"

namespace winnow {
namespace {

// Bits of the captured masses of the newest plan.
std::vector<uint32_t> MassBits(GpuContext& gpu, const CacheGpu& cache) {
  std::vector<uint32_t> bits;
  for (const device::MeasuredMass& mass : gpu.Download(cache.selection->masses(), cache.selection->num_masses())) {
    bits.insert(bits.end(), {mass.plan, std::bit_cast<uint32_t>(mass.mass)});
  }
  return bits;
}

// An inference rank's stream plays its part of the plans, flag by flag, while graphs of the cache rank wait for it:
// both end, and the slots are those of the same plans done one by one.
void CheckGraphs(GpuContext& gpu, const char* preset) {
  const CacheGpu::Options options = Case(Preset(preset, 512), gpu.random());
  const int num_layers = options.layout.num_layers;
  std::vector<std::vector<uint16_t>> slots;
  std::vector<std::vector<uint32_t>> indices;
  for (const bool stepped : {true, false}) {
    CacheGpu cache(gpu, options);
    std::vector<uint32_t> numbers(options.num_plans);
    for (int plan = 0; plan < options.num_plans; ++plan) numbers[plan] = cache.plan->next_plan() + plan;
    const uint32_t* device_numbers = gpu.Upload(numbers);
    uint32_t* error = gpu.NewZeroed<uint32_t>(1);
    const device::Stream inference = stepped ? gpu.stream : gpu.device.NewStream();
    const device::Stream selecting = gpu.stream;
    WINNOW_CHECK(gpu.device.Synchronize(gpu.stream).ok());
    for (int plan = 0; plan < options.num_plans; ++plan) {
      const uint32_t* number = device_numbers + plan;
      if (!stepped) {
        if (const absl::Status status = cache.graph->Launch(selecting, /*measures=*/true); !status.ok()) {
          return gpu.report.Fail(absl::StrCat("graphs of ", preset), std::string(status.message()));
        }
      }
      for (int layer = 0; layer < num_layers; ++layer) {
        cache.SendHidden(inference, plan, layer);
        gpu.table.cache->raise(inference, {.flag = cache.inbox.hidden_flags + layer, .value = number});
        cache.SendRows(inference, plan, layer);
        gpu.table.cache->raise(inference, {.flag = cache.inbox.rows_flags + layer, .value = number});
        if (stepped) continue;
        gpu.table.cache->wait(
            inference, {.flag = cache.peer.delta_flags + layer, .value = number, .abort = nullptr, .error = error});
      }
      if (!stepped) continue;
      cache.graph->Enqueue(selecting, cache.graph->NextBucket());
      cache.plan->Advance();
    }
    for (const device::Stream stream : {inference, selecting}) {
      if (const absl::Status status = gpu.device.Synchronize(stream); !status.ok()) {
        return gpu.report.Fail(absl::StrCat("graphs of ", preset), std::string(status.message()));
      }
    }
    gpu.report.Check(absl::StrCat("graphs of ", preset, ": errors of waits"),
                     cache.graph->error() + gpu.Download(error, 1)[0], 0);
    if (!stepped) {
      const std::vector<uint32_t> beside = MassBits(gpu, cache);
      for (int layer = 0; layer < num_layers; ++layer) {
        const PlanBucket bucket{.num_rows = cache.max_rows(), .max_keys = cache.store->shape().max_positions};
        cache.selection->EnqueueRealQueries(gpu.stream, bucket, layer, cache.inbox);
        cache.selection->EnqueueMass(gpu.stream, bucket, layer, cache.peer);
      }
      gpu.report.Check(absl::StrCat("graphs of ", preset, ": captured masses"), beside == MassBits(gpu, cache) ? 0 : 1,
                       0);
    }
    slots.push_back(cache.PeerSlots());
    indices.emplace_back();
    for (int layer = 0; layer < num_layers; ++layer) {
      const std::vector<uint32_t> layer_indices = cache.PeerPoolIndices(layer);
      const std::vector<device::AttentionList> lists = cache.PeerLists(layer);
      for (size_t entry = 0; entry < lists.size(); ++entry) {
        if (!cache.sits(static_cast<int>(entry) / options.layout.num_kv_heads)) continue;  // nobody is told
        const auto first = layer_indices.begin() + static_cast<int64_t>(entry * cache.plan->max_budget());
        indices.back().insert(indices.back().end(), first, first + lists[entry].selected_count);
      }
    }
  }
  gpu.report.Check(absl::StrCat("graphs of ", preset, ": slots"), slots[0] == slots[1] ? 0 : 1, 0);
  gpu.report.Check(absl::StrCat("graphs of ", preset, ": pool indices"), indices[0] == indices[1] ? 0 : 1, 0);
  gpu.FreeAll();
}

// A plan that nobody feeds ends when it is aborted, long before its waits would time out.
void CheckAbort(GpuContext& gpu) {
  CacheGpu cache(gpu, Case(Preset("winnow"), gpu.random()));
  WINNOW_CHECK(cache.graph->Launch(gpu.stream).ok());
  cache.graph->Abort();
  const absl::Status status = gpu.device.Synchronize(gpu.stream);
  if (!status.ok()) gpu.report.Fail("an aborted plan", std::string(status.message()));
  gpu.report.Check("an aborted plan says so", cache.graph->error() == device::kWaitAborted ? 0 : 1, 0);
  gpu.FreeAll();
}

}  // namespace

void CheckSelectGraphs(GpuContext& gpu) {
  for (const char* preset : {"winnow", "async-token", "exact-token"}) CheckGraphs(gpu, preset);
  CheckAbort(gpu);
}

}  // namespace winnow
