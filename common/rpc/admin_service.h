#pragma once
#include <functional>
#include <string>
#include <vector>

#include "common/rpc/credentials.h"
#include "common/timeline/timeline.h"
#include "winnow/v1/admin.grpc.pb.h"

namespace winnow {

// A thread of the process whose time can be recorded.
struct NamedTimeline {
  std::string thread;
  Timeline* timeline = nullptr;
};

// AdminService, the same in every process: answers with what it was made of and asks `load` for the rest.
class AdminServiceImpl final : public v1::AdminService::Service {
 public:
  // `credentials` are those that it dials others with. `load` may be called from any thread and at any time until the
  // server has shut down; the timelines must live as long.
  AdminServiceImpl(v1::GetServerInfoResponse info, std::function<v1::RankLoad()> load,
                   std::vector<NamedTimeline> timelines = {}, Credentials credentials = {});

  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest* request,
                             v1::GetServerInfoResponse* response) override;
  grpc::Status GetLoad(grpc::ServerContext* context, const v1::GetLoadRequest* request,
                       v1::GetLoadResponse* response) override;
  grpc::Status Reach(grpc::ServerContext* context, const v1::ReachRequest* request,
                     v1::ReachResponse* response) override;
  grpc::Status StartTimeline(grpc::ServerContext* context, const v1::StartTimelineRequest* request,
                             v1::StartTimelineResponse* response) override;
  grpc::Status StopTimeline(grpc::ServerContext* context, const v1::StopTimelineRequest* request,
                            v1::StopTimelineResponse* response) override;

 private:
  const v1::GetServerInfoResponse info_;
  const std::function<v1::RankLoad()> load_;
  const std::vector<NamedTimeline> timelines_;
  const Credentials credentials_;
};

}  // namespace winnow
