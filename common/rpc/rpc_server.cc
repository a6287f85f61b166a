#include "common/rpc/rpc_server.h"

#include <mutex>

#include "common/config/listen_address.h"
#include "common/rpc/channel.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace winnow {
namespace {

// Threads for the calls of synchronous services and of unknown methods, each of which blocks one; gRPC sets no bound of
// its own. More such calls at a time are answered with RESOURCE_EXHAUSTED. The others, all streams among them, block
// none.
constexpr int kMaxBlockingCalls = 256;
// Of one connection; a client's library has calls beyond wait. Several times a router's --max-queue.
constexpr int kMaxConcurrentStreams = 8192;

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const std::string& address,
                                                            const std::vector<NamedService>& services,
                                                            const Credentials& credentials) {
  WINNOW_RETURN_IF_ERROR(CheckListenAddress(address).status());
  static std::once_flag plugins;  // must precede the process's first ServerBuilder
  std::call_once(plugins, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  auto server = std::unique_ptr<RpcServer>(new RpcServer);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, credentials.ForServer(), &port);
  // Without this, two processes can listen on one port and each gets some of the connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxConcurrentStreams);
  grpc::ResourceQuota quota("winnow");
  quota.SetMaxThreads(kMaxBlockingCalls);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  for (const NamedService& service : services) {
    builder.RegisterService(service.service);
    server->service_names_.push_back(service.name);
  }
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || port == 0) {
    return absl::AlreadyExistsError(absl::StrCat("cannot listen on ", address));
  }
  server->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
  server->SetServing(false);
  return server;
}

RpcServer::~RpcServer() {
  Shutdown(std::chrono::milliseconds(0));
}

void RpcServer::SetServing(bool serving) {
  if (server_ == nullptr) return;
  server_->GetHealthCheckService()->SetServingStatus("", serving);
  for (const std::string& name : service_names_) SetServing(name, serving);
}

void RpcServer::SetServing(const std::string& service_name, bool serving) {
  if (server_ != nullptr) server_->GetHealthCheckService()->SetServingStatus(service_name, serving);
}

void RpcServer::Shutdown(std::chrono::milliseconds grace) {
  if (server_ == nullptr) return;
  SetServing(false);
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  server_->Wait();
  server_ = nullptr;
}

}  // namespace winnow
