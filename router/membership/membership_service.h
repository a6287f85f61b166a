#pragma once
#include "router/membership/reachability.h"
#include "router/membership/registry.h"
#include "winnow/v1/membership.grpc.pb.h"

namespace winnow {

// The registry as a gRPC service. A rank enters it once it has been dialed at the address that it tells: until then
// Register answers UNAVAILABLE with the reason, and the rank tries again. INVALID_ARGUMENT: nobody could reach it
// there.
class MembershipService final : public v1::MembershipService::CallbackService {
 public:
  // Both must outlive the server. Without `reachability` ranks are believed.
  explicit MembershipService(Registry* registry, Reachability* reachability = nullptr)
      : registry_(registry), reachability_(reachability) {}

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
  Reachability* const reachability_;
};

}  // namespace winnow
