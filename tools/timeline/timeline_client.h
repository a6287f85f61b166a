#pragma once
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/credentials.h"
#include "winnow/v1/admin.grpc.pb.h"

namespace winnow {

// Records the timelines of all ranks of a running cluster: Start, let time pass, Stop. The processes that have a data
// path are those that the router knows; hosted cache ranks share the process of their inference rank.
class TimelineClient {
 public:
  // `router`: its gRPC address. UNAVAILABLE when nobody is there, NOT_FOUND when no rank has joined it.
  static absl::StatusOr<TimelineClient> Connect(const std::string& router, const Credentials& credentials = {});

  absl::Status Start();
  // In the order of the router's table.
  absl::StatusOr<std::vector<v1::StopTimelineResponse>> Stop();

 private:
  struct Rank {
    std::string name;
    std::unique_ptr<v1::AdminService::Stub> stub;
  };
  std::vector<Rank> ranks_;
};

}  // namespace winnow
