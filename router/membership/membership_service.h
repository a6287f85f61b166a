#pragma once
#include "router/membership/registry.h"
#include "winnow/v1/membership.grpc.pb.h"

namespace winnow {

// The registry as a gRPC service.
class MembershipService final : public v1::MembershipService::CallbackService {
 public:
  // `registry` must outlive the server.
  explicit MembershipService(Registry* registry) : registry_(registry) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context, const v1::RegisterRequest* request,
                                     v1::RegisterResponse* response) override;
  grpc::ServerBidiReactor<v1::HeartbeatRequest, v1::HeartbeatResponse>* Heartbeat(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest* request) override;
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context, const v1::LeaveRequest* request,
                                  v1::LeaveResponse* response) override;

 private:
  Registry* const registry_;
};

}  // namespace winnow
