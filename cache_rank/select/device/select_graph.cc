#include "cache_rank/select/device/select_graph.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "cache_rank/select/device/select_params.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace winnow {
namespace {

constexpr std::array<int, 9> kBucketRows = {1, 2, 4, 8, 16, 24, 32, 48, 64};
constexpr uint32_t kLeastBucketKeys = 4096;
// Blocks of a push beside the next layer's selection: so few fill a link as well, and leave room on multiprocessors.
constexpr int kOverlappedPushCtas = 32;

}  // namespace

absl::StatusOr<std::unique_ptr<SelectGraph>> SelectGraph::Create(const device::DeviceTable* table,
                                                                 device::Device* device, const DeviceKvStore* store,
                                                                 DevicePlan* plan, DeviceSelection* selection,
                                                                 const device::CacheInbox& inbox,
                                                                 const device::InferenceInbox& peer,
                                                                 const Options& options) {
  std::unique_ptr<SelectGraph> graph(new SelectGraph(table, device, store, plan, selection, inbox, peer, options));
  if (options.abort_word != nullptr) return graph;
  WINNOW_ASSIGN_OR_RETURN(graph->words_, device->AllocatePinned(2 * sizeof(uint32_t)));
  auto* const words = static_cast<uint32_t*>(graph->words_->data());
  words[0] = words[1] = 0;
  graph->options_.abort_word = words;
  graph->options_.error_word = words + 1;
  return graph;
}

SelectGraph::SelectGraph(const device::DeviceTable* table, device::Device* device, const DeviceKvStore* store,
                         DevicePlan* plan, DeviceSelection* selection, const device::CacheInbox& inbox,
                         const device::InferenceInbox& peer, const Options& options)
    : table_(table),
      device_(device),
      store_(store),
      plan_(plan),
      selection_(selection),
      inbox_(inbox),
      peer_(peer),
      options_(options),
      order_(SelectOrder(plan->spec(), store->shape().layout.num_layers)),
      push_stream_(device->NewStream()),
      query_stream_(device->NewStream()),
      mass_stream_(device->NewStream()),
      begun_(device->NewEvent()),
      settled_(device->NewEvent()),
      first_read_(device->NewEvent()),
      measured_(device->NewEvent()),
      predicted_{device->NewEvent(), device->NewEvent()},
      selected_{device->NewEvent(), device->NewEvent()},
      pushed_{device->NewEvent(), device->NewEvent()} {}

PlanBucket SelectGraph::NextBucket() const {
  const int rows = *std::lower_bound(kBucketRows.begin(), kBucketRows.end(), std::max(plan_->num_rows(), 1));
  const uint32_t keys = std::max(std::bit_ceil(plan_->greatest_position() + 1), kLeastBucketKeys);
  const bool has_rows = plan_->num_rows() > 0 && plan_->spec().score_all_below_tokens > 0;
  return {.num_rows = std::min(rows, plan_->max_rows()),
          .max_keys = std::min(keys, store_->shape().max_positions),
          .none_below = has_rows && NoneBelow(plan_->spec(), plan_->least_position())};
}

absl::Status SelectGraph::Launch(device::Stream stream, bool measures) {
  WINNOW_RETURN_IF_ERROR(plan_->CheckPositions());
  const PlanBucket bucket = NextBucket();
  auto graph = std::find_if(graphs_.begin(), graphs_.end(),
                            [&](const Captured& g) { return g.bucket == bucket && g.measures == measures; });
  if (graph == graphs_.end()) {
    WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<device::Graph> captured,
                            device_->Capture(stream, [=, this](device::Stream capturing) {
                              EnqueueOverlapped(capturing, bucket, measures);
                            }));
    graphs_.push_back({bucket, measures, std::move(captured)});
    graph = std::prev(graphs_.end());
  }
  graph->graph->Launch(stream);
  plan_->Advance();
  return device_->CheckLaunches();
}

void SelectGraph::Wait(device::Stream stream, const uint32_t* flag) const {
  table_->cache->wait(stream, {.flag = flag,
                               .value = plan_->plan(),
                               .abort = options_.abort_word,
                               .error = options_.error_word,
                               .timeout_us = options_.timeout_us});
}

void SelectGraph::Enqueue(device::Stream stream, const PlanBucket& bucket) const {
  plan_->EnqueueBegin(stream, bucket.num_rows);
  for (const SelectAction& action : order_) EnqueueAction(stream, bucket, action);
}

void SelectGraph::EnqueueOverlapped(device::Stream stream, const PlanBucket& bucket, bool measures) const {
  using Kind = SelectAction::Kind;
  plan_->EnqueueBegin(stream, bucket.num_rows);
  begun_->Record(stream);
  const int last_layer = store_->shape().layout.num_layers - 1;
  // Of even and odd layers.
  bool has_predicted[2] = {}, has_selected[2] = {}, has_pushed[2] = {};
  std::vector<bool> was_selected_for(last_layer + 1), was_appended_to(last_layer + 1);
  for (const SelectAction& action : order_) {
    const int parity = action.layer % 2;
    if (action.kind == Kind::kQueriesFromPast) {
      // They follow from earlier plans alone. Those of the layer two before have been used.
      (has_selected[parity] ? selected_[parity] : begun_)->Hold(query_stream_);
      EnqueueAction(query_stream_, bucket, action);
      predicted_[parity]->Record(query_stream_);
      has_predicted[parity] = true;
      continue;
    }
    if (action.kind == Kind::kPush) {
      // Behind the delta of the last layer the queries of the first may be overwritten.
      if (measures && action.layer == last_layer) first_read_->Hold(push_stream_);
      selected_[parity]->Record(stream);
      has_selected[parity] = true;
      selected_[parity]->Hold(push_stream_);
      selection_->EnqueuePush(push_stream_, bucket, action.layer, peer_, kOverlappedPushCtas);
      pushed_[parity]->Record(push_stream_);
      has_pushed[parity] = true;
      continue;
    }
    if (action.kind == Kind::kSelect) {
      if (has_predicted[parity]) predicted_[parity]->Hold(stream);
      // What the push of the layer two before reads is written anew.
      if (has_pushed[parity]) pushed_[parity]->Hold(stream);
    }
    EnqueueAction(stream, bucket, action);
    if (!measures) continue;
    if (action.kind == Kind::kSelect) was_selected_for[action.layer] = true;
    if (action.kind == Kind::kAppend) was_appended_to[action.layer] = true;
    const bool settles = action.kind == Kind::kSelect || action.kind == Kind::kAppend;
    if (settles && was_selected_for[action.layer] && was_appended_to[action.layer]) {
      EnqueueMass(stream, bucket, action.layer);
    }
  }
  if (measures) {
    measured_->Record(mass_stream_);
    measured_->Hold(stream);
  }
  for (int parity = 0; parity < 2; ++parity) {
    if (has_pushed[parity]) pushed_[parity]->Hold(stream);
  }
  if (options_.digests_rows) selection_->EnqueueDigest(stream, bucket, peer_);
}

void SelectGraph::EnqueueMass(device::Stream stream, const PlanBucket& bucket, int layer) const {
  settled_->Record(stream);
  settled_->Hold(mass_stream_);
  selection_->EnqueueRealQueries(mass_stream_, bucket, layer, inbox_);
  if (layer == 0) first_read_->Record(mass_stream_);
  selection_->EnqueueMass(mass_stream_, bucket, layer, peer_);
}

void SelectGraph::EnqueueAction(device::Stream stream, const PlanBucket& bucket, const SelectAction& action) const {
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
  WINNOW_CHECK(words_ != nullptr);
  std::atomic_ref<uint32_t>(*static_cast<uint32_t*>(words_->data())).store(1, std::memory_order_release);
}

uint32_t SelectGraph::error() const {
  return std::atomic_ref<uint32_t>(*options_.error_word).load(std::memory_order_acquire);
}

}  // namespace winnow
