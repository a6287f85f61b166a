// Where calls of generated stubs end in a simulation. These definitions come before gRPC's generated ones where the
// program is linked.
#include "common/base/check.h"
#include "common/rpc/channel.h"
#include "tools/simulation/network/blocking_stream.h"
#include "tools/simulation/network/rpc.h"
#include "winnow/v1/admin.grpc.pb.h"
#include "winnow/v1/cache.grpc.pb.h"
#include "winnow/v1/membership.grpc.pb.h"
#include "winnow/v1/rank.grpc.pb.h"
#include "winnow/v1/replication.grpc.pb.h"
#include "winnow/v1/transport.grpc.pb.h"

namespace winnow {
namespace simulation {
namespace {

// Knows where it leads, and nothing else.
class RpcChannel final : public grpc::ChannelInterface {
 public:
  explicit RpcChannel(std::string address) : address(std::move(address)) {}
  grpc_connectivity_state GetState(bool) override { return GRPC_CHANNEL_READY; }

  const std::string address;

 private:
  grpc::internal::Call CreateCall(const grpc::internal::RpcMethod&, grpc::ClientContext*,
                                  grpc::CompletionQueue*) override {
    WINNOW_CHECK(false);  // a call that stubs.cc lacks
    return {};
  }
  void PerformOpsOnCall(grpc::internal::CallOpSetInterface*, grpc::internal::Call*) override { WINNOW_CHECK(false); }
  void* RegisterMethod(const char*) override { return nullptr; }
  void NotifyOnStateChangeImpl(grpc_connectivity_state, gpr_timespec, grpc::CompletionQueue*, void*) override {}
  bool WaitForStateChangeImpl(grpc_connectivity_state, gpr_timespec) override { return false; }
};

const std::string& AddressOf(grpc::ChannelInterface* channel) {
  return static_cast<RpcChannel*>(channel)->address;
}

template <typename Request, typename Response>
void Open(grpc::ChannelInterface* channel, const char* method, grpc::ClientContext* context,
          grpc::ClientBidiReactor<Request, Response>* reactor) {
  new ClientStream<Request, Response>(Rpc::current(), AddressOf(channel), method, context, reactor);
}

}  // namespace
}  // namespace simulation

// Nobody looks into the channel but the stubs here.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& address, const Credentials& /*credentials*/) {
  auto channel = std::make_shared<simulation::RpcChannel>(address);
  return {channel, static_cast<grpc::Channel*>(static_cast<grpc::ChannelInterface*>(channel.get()))};
}

namespace v1 {

void RankService::Stub::async::Dispatch(grpc::ClientContext* context,
                                        grpc::ClientBidiReactor<DispatchRequest, DispatchResponse>* reactor) {
  simulation::Open(stub_->channel_.get(), "Dispatch", context, reactor);
}
void TransportService::Stub::async::Exchange(grpc::ClientContext* context,
                                             grpc::ClientBidiReactor<ExchangeRequest, ExchangeResponse>* reactor) {
  simulation::Open(stub_->channel_.get(), "Exchange", context, reactor);
}
void MembershipService::Stub::async::Heartbeat(grpc::ClientContext* context,
                                               grpc::ClientBidiReactor<HeartbeatRequest, HeartbeatResponse>* reactor) {
  simulation::Open(stub_->channel_.get(), "Heartbeat", context, reactor);
}

// Callers see the interface alone (replica_feed.cc), which begins where the class does.
grpc::ClientReaderWriter<FeedRequest, FeedResponse>* ReplicationService::Stub::FeedRaw(grpc::ClientContext* context) {
  grpc::ClientReaderWriterInterface<FeedRequest, FeedResponse>* const stream =
      new simulation::BlockingClientStream<FeedRequest, FeedResponse>(
          simulation::Rpc::current(), simulation::AddressOf(channel_.get()), "Feed", context);
  return static_cast<grpc::ClientReaderWriter<FeedRequest, FeedResponse>*>(stream);
}

#define WINNOW_SIMULATED_CALL(Service, Method)                                                                \
  grpc::Status Service::Stub::Method(grpc::ClientContext* context, const Method##Request& request,            \
                                     Method##Response* response) {                                            \
    return simulation::Rpc::current()->Call(simulation::AddressOf(channel_.get()), context, #Method, request, \
                                            response);                                                        \
  }
WINNOW_SIMULATED_CALL(MembershipService, Register)
WINNOW_SIMULATED_CALL(MembershipService, Leave)
WINNOW_SIMULATED_CALL(CacheService, OpenSequence)
WINNOW_SIMULATED_CALL(CacheService, AttachSequence)
WINNOW_SIMULATED_CALL(CacheService, PushPrefix)
WINNOW_SIMULATED_CALL(CacheService, ForkSequence)
WINNOW_SIMULATED_CALL(CacheService, ReleaseSequence)
WINNOW_SIMULATED_CALL(ReplicationService, KeepReplica)
WINNOW_SIMULATED_CALL(AdminService, GetServerInfo)
WINNOW_SIMULATED_CALL(AdminService, Reach)
#undef WINNOW_SIMULATED_CALL

}  // namespace v1
}  // namespace winnow

namespace grpc {

void ClientContext::TryCancel() {
  winnow::simulation::Rpc::current()->Cancel(this);
}

std::string ServerContextBase::peer() const {
  return "";
}

}  // namespace grpc
