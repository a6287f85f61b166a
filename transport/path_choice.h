#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "transport/payload_path.h"

namespace winnow {

// Which payload path a channel takes, if any.
class PathChoice {
 public:
  PathChoice(const std::vector<PayloadPathKind>& kinds, size_t window_bytes)
      : kinds_(kinds), window_bytes_(window_bytes) {}

  // Opaque, for the peer: all kinds before Connect, after it the one that was taken, or why none was.
  std::string Offers();
  // Takes the first kind that the peer offers too and that connects.
  void Connect(std::string_view peer_offers);

  // Lets go of all paths.
  void Drop() {
    connected_ = true;
    made_.clear();
    path_.reset();
  }

  PayloadPath* path() const { return path_.get(); }  // null: none
  std::string_view name() const { return name_; }
  // After Connect: why there is no path.
  const absl::Status& why_none() const { return why_none_; }

 private:
  struct Made {
    std::string name;
    absl::StatusOr<std::unique_ptr<PayloadPath>> path;
  };
  using Offered = std::vector<std::pair<std::string_view, std::string_view>>;  // name, address
  absl::Status NothingInCommon(const Offered& offers);
  // Once each.
  absl::StatusOr<std::unique_ptr<PayloadPath>>& Make(const PayloadPathKind& kind);

  const std::vector<PayloadPathKind>& kinds_;
  const size_t window_bytes_;
  std::vector<Made> made_;
  bool connected_ = false;
  std::unique_ptr<PayloadPath> path_;
  std::string name_;
  absl::Status why_none_;
};

}  // namespace winnow
