#pragma once
#include <optional>

#include "absl/status/status.h"
#include "common/base/kv_layout.h"
#include "winnow/v1/membership.pb.h"

namespace winnow {

// What all ranks of a cluster have in common: the versions that the first rank has fixed, the model that the first
// inference rank has, and the limits of those that are there. Not thread-safe.
class ClusterModel {
 public:
  // FAILED_PRECONDITION names what differs; INVALID_ARGUMENT for an inference rank without limits.
  absl::Status Check(const v1::RegisterRequest& request) const;
  // A rank that has been checked.
  void Joined(const v1::RegisterRequest& request);

  // The smallest of each, of the inference ranks that are there; with none the last ones known stay.
  class Limits {
   public:
    void Add(const v1::ModelLimits& of_rank);

   private:
    friend class ClusterModel;
    std::optional<v1::ModelLimits> smallest_;
  };
  void SetLimits(Limits limits);

  const std::optional<v1::ModelLimits>& limits() const { return limits_; }
  const std::optional<v1::Fingerprint>& fingerprint() const { return model_; }
  // Absent before the first inference rank, and where what it registered is no possible one.
  std::optional<KvLayout> kv_layout() const;

 private:
  std::optional<v1::Fingerprint> versions_;  // of the first rank
  std::optional<v1::Fingerprint> model_;     // of the first inference rank
  std::optional<v1::ModelLimits> limits_;
};

}  // namespace winnow
