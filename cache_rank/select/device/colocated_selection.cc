#include "cache_rank/select/device/colocated_selection.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status.h"

namespace winnow {

ColocatedSelection::ColocatedSelection(device::Device& device, DevicePlan& plan, DeviceSelection& selection,
                                       const PlanBucket& bucket, const device::CacheInbox& inbox,
                                       const device::InferenceInbox& peer, int num_layers,
                                       std::span<const uint32_t> windows)
    : plan_(plan),
      selection_(selection),
      bucket_(bucket),
      inbox_(inbox),
      peer_(peer),
      order_(SelectOrder(plan.spec(), num_layers, windows)),
      hidden_(device.NewEvent()),
      pushed_(num_layers),
      appended_(num_layers) {}

int ColocatedSelection::hidden_layers() const {
  int layers = 0;
  for (const SelectAction& action : order_) {
    if (action.kind == SelectAction::Kind::kWaitHidden) layers = std::max(layers, action.layer + 1);
  }
  return layers;
}

absl::Status ColocatedSelection::CountPlan() {
  WINNOW_RETURN_IF_ERROR(plan_.CheckPositions());
  plan_.Advance();
  return absl::OkStatus();
}

void ColocatedSelection::Enqueue(device::Stream stream, const SelectAction& action) {
  switch (action.kind) {
    case SelectAction::Kind::kWaitHidden:
    case SelectAction::Kind::kWaitRows:
      break;
    case SelectAction::Kind::kQueriesOfOwn:
      selection_.EnqueueOwnQueries(stream, bucket_, action.layer, inbox_);
      break;
    case SelectAction::Kind::kQueriesFromHidden:
      selection_.EnqueueDepthQueries(stream, bucket_, action.layer, action.hidden_layer, inbox_);
      break;
    case SelectAction::Kind::kQueriesFromPast:
      selection_.EnqueuePastQueries(stream, bucket_, action.layer);
      break;
    case SelectAction::Kind::kSelect:
      selection_.EnqueueSelect(stream, bucket_, action.layer);
      break;
    case SelectAction::Kind::kPush:
      selection_.EnqueuePush(stream, bucket_, action.layer, peer_);
      break;
    case SelectAction::Kind::kAppend:
      selection_.EnqueueAppend(stream, bucket_, action.layer, inbox_, step_positions_);
      break;
  }
}

void ColocatedSelection::BeginPlan(device::Stream stream) {
  stream_ = stream;
  next_action_ = 0;
  hidden_seen_ = rows_seen_ = -1;
  pushed_.assign(pushed_.size(), false);
  appended_.assign(appended_.size(), false);
  plan_.EnqueueBegin(stream_, bucket_.num_rows, step_positions_);
}

void ColocatedSelection::EnqueueReady() {
  for (; next_action_ < order_.size(); ++next_action_) {
    const SelectAction& action = order_[next_action_];
    if (action.kind == SelectAction::Kind::kWaitHidden && action.layer > hidden_seen_) return;
    if (action.kind == SelectAction::Kind::kWaitRows && action.layer > rows_seen_) return;
    Enqueue(stream_, action);
    if (measures_) MeasureBehind(action);
  }
}

void ColocatedSelection::MeasureBehind(const SelectAction& action) {
  if (action.kind == SelectAction::Kind::kPush) pushed_[action.layer] = true;
  if (action.kind == SelectAction::Kind::kAppend) appended_[action.layer] = true;
  const bool settles = action.kind == SelectAction::Kind::kPush || action.kind == SelectAction::Kind::kAppend;
  if (!settles || !pushed_[action.layer] || !appended_[action.layer]) return;
  selection_.EnqueueRealQueries(stream_, bucket_, action.layer, inbox_);
  selection_.EnqueueMass(stream_, bucket_, action.layer, peer_);
}

void ColocatedSelection::OnHidden(device::Stream stream, int layer) {
  hidden_seen_ = layer;
  hidden_->Record(stream);
  hidden_->Hold(stream_);
  EnqueueReady();
}

void ColocatedSelection::OnRows(int layer) {
  rows_seen_ = layer;
  EnqueueReady();
}

void ColocatedSelection::EndPlan() {
  WINNOW_CHECK(next_action_ == order_.size());
}

}  // namespace winnow
