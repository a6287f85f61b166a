#include "router/membership/cluster_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/kv_shape.h"
#include "router/membership/fingerprint.h"

namespace winnow {

absl::Status ClusterModel::Check(const v1::RegisterRequest& request) const {
  if (versions_) WINNOW_RETURN_IF_ERROR(CompareVersions(*versions_, request.fingerprint()));
  if (request.identity().role() != v1::ROLE_INFERENCE_RANK) return absl::OkStatus();
  if (request.limits().vocab_size() == 0 || request.limits().max_context_tokens() == 0) {
    return absl::InvalidArgumentError(
        "an inference rank must register with limits.vocab_size and limits.max_context_tokens");
  }
  if (model_) WINNOW_RETURN_IF_ERROR(CompareModelFingerprints(*model_, request.fingerprint()));
  if (limits_ && limits_->vocab_size() != request.limits().vocab_size()) {
    return absl::FailedPreconditionError(absl::StrCat("limits.vocab_size is ", request.limits().vocab_size(),
                                                      ", but the cluster has ", limits_->vocab_size()));
  }
  return absl::OkStatus();
}

void ClusterModel::Joined(const v1::RegisterRequest& request) {
  if (!versions_) versions_ = request.fingerprint();
  if (!model_ && request.identity().role() == v1::ROLE_INFERENCE_RANK) model_ = request.fingerprint();
}

void ClusterModel::Limits::Add(const v1::ModelLimits& of_rank) {
  if (!smallest_) {
    smallest_ = of_rank;
    return;
  }
  smallest_->set_max_context_tokens(std::min(smallest_->max_context_tokens(), of_rank.max_context_tokens()));
  smallest_->set_max_budget_tokens(std::min(smallest_->max_budget_tokens(), of_rank.max_budget_tokens()));
  smallest_->set_max_running(std::min(smallest_->max_running(), of_rank.max_running()));
}

void ClusterModel::SetLimits(Limits limits) {
  if (limits.smallest_) limits_ = std::move(limits.smallest_);
}

std::optional<KvLayout> ClusterModel::kv_layout() const {
  if (!model_) return std::nullopt;
  const absl::StatusOr<KvLayout> layout = ParseKvLayout(model_->kv_shape());
  return layout.ok() ? std::optional(*layout) : std::nullopt;
}

}  // namespace winnow
