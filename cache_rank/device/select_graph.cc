#include "cache_rank/device/select_graph.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "common/base/check.h"
#include "common/base/status.h"

namespace winnow {
namespace {

constexpr std::array<int, 9> kBucketRows = {1, 2, 4, 8, 16, 24, 32, 48, 64};
constexpr uint32_t kLeastBucketKeys = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<SelectGraph>> SelectGraph::Create(const cuda::CudaTable* table, cuda::Device* device,
                                                                 const DeviceKvStore* store, DevicePlan* plan,
                                                                 DeviceSelection* selection,
                                                                 const cuda::CacheInbox& inbox,
                                                                 const cuda::InferenceInbox& peer,
                                                                 const Options& options) {
  std::unique_ptr<SelectGraph> graph(new SelectGraph(table, device, store, plan, selection, inbox, peer, options));
  WINNOW_ASSIGN_OR_RETURN(graph->words_memory_, device->AllocatePinned(sizeof(Words)));
  graph->words_ = static_cast<Words*>(graph->words_memory_->data());
  *graph->words_ = {};
  return graph;
}

SelectGraph::SelectGraph(const cuda::CudaTable* table, cuda::Device* device, const DeviceKvStore* store,
                         DevicePlan* plan, DeviceSelection* selection, const cuda::CacheInbox& inbox,
                         const cuda::InferenceInbox& peer, const Options& options)
    : table_(table),
      device_(device),
      store_(store),
      plan_(plan),
      selection_(selection),
      inbox_(inbox),
      peer_(peer),
      options_(options),
      order_(SelectOrder(plan->spec(), store->shape().layout.num_layers)) {}

PlanBucket SelectGraph::NextBucket() const {
  const int rows = *std::lower_bound(kBucketRows.begin(), kBucketRows.end(), std::max(plan_->num_rows(), 1));
  const uint32_t keys = std::max(std::bit_ceil(plan_->greatest_position() + 1), kLeastBucketKeys);
  return {.num_rows = std::min(rows, plan_->max_rows()), .max_keys = std::min(keys, store_->shape().max_positions)};
}

absl::Status SelectGraph::Launch(cuda::Stream stream) {
  WINNOW_RETURN_IF_ERROR(plan_->CheckPositions());
  const PlanBucket bucket = NextBucket();
  auto graph = std::find_if(graphs_.begin(), graphs_.end(), [&](const auto& g) { return g.first == bucket; });
  if (graph == graphs_.end()) {
    WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<cuda::Graph> captured,
                            device_->Capture(stream, [&](cuda::Stream capturing) { Enqueue(capturing, bucket); }));
    graphs_.emplace_back(bucket, std::move(captured));
    graph = std::prev(graphs_.end());
  }
  graph->second->Launch(stream);
  plan_->Advance();
  return device_->CheckLaunches();
}

void SelectGraph::Wait(cuda::Stream stream, const uint32_t* flag) const {
  table_->cache->wait(stream, {.flag = flag,
                               .value = plan_->plan(),
                               .abort = &words_->abort,
                               .error = &words_->error,
                               .timeout_us = options_.timeout_us});
}

void SelectGraph::Enqueue(cuda::Stream stream, const PlanBucket& bucket) const {
  plan_->EnqueueBegin(stream, bucket.num_rows);
  for (const SelectAction& action : order_) EnqueueAction(stream, bucket, action);
}

void SelectGraph::EnqueueAction(cuda::Stream stream, const PlanBucket& bucket, const SelectAction& action) const {
  switch (action.kind) {
    case SelectAction::Kind::kWaitHidden:
      Wait(stream, inbox_.hidden_flags + action.layer);
      break;
    case SelectAction::Kind::kWaitRows:
      Wait(stream, inbox_.rows_flags + action.layer);
      break;
    case SelectAction::Kind::kQueriesOfOwn:
      selection_->EnqueueOwnQueries(stream, bucket, action.layer, inbox_);
      break;
    case SelectAction::Kind::kQueriesFromHidden:
      selection_->EnqueueDepthQueries(stream, bucket, action.layer, action.hidden_layer, inbox_);
      break;
    case SelectAction::Kind::kQueriesFromPast:
      selection_->EnqueuePastQueries(stream, bucket, action.layer);
      break;
    case SelectAction::Kind::kSelect:
      selection_->EnqueueSelect(stream, bucket, action.layer);
      break;
    case SelectAction::Kind::kPush:
      selection_->EnqueuePush(stream, bucket, action.layer, peer_);
      break;
    case SelectAction::Kind::kAppend:
      selection_->EnqueueAppend(stream, bucket, action.layer, inbox_);
      break;
  }
}

void SelectGraph::Abort() {
  std::atomic_ref<uint32_t>(words_->abort).store(1, std::memory_order_release);
}

uint32_t SelectGraph::error() const {
  return std::atomic_ref<uint32_t>(words_->error).load(std::memory_order_acquire);
}

}  // namespace winnow
