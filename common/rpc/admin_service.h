#pragma once
#include <functional>
#include <string>

#include "winnow/v1/admin.grpc.pb.h"

namespace winnow {

// AdminService, the same in every process: answers with what it was made of and asks `load` for the rest.
class AdminServiceImpl final : public v1::AdminService::Service {
 public:
  // `load` may be called from any thread and at any time until the server has shut down.
  AdminServiceImpl(v1::GetServerInfoResponse info, std::function<v1::RankLoad()> load);

  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest* request,
                             v1::GetServerInfoResponse* response) override;
  grpc::Status GetLoad(grpc::ServerContext* context, const v1::GetLoadRequest* request,
                       v1::GetLoadResponse* response) override;

 private:
  const v1::GetServerInfoResponse info_;
  const std::function<v1::RankLoad()> load_;
};

}  // namespace winnow
