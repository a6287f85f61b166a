#include "common/rpc/rpc_server.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "common/rpc/channel.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace winnow {
namespace {

// gRPC says only that it cannot listen; binding the address ourselves says why.
absl::Status WhyNot(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return absl::InvalidArgumentError(absl::StrCat("\"", address, "\" is not HOST:PORT"));
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found); error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot listen on ", address, ": ", gai_strerror(error)));
  }
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const int error = bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1) == 0 ? 0 : errno;
  close(fd);
  freeaddrinfo(found);
  if (error == EADDRINUSE) return absl::AlreadyExistsError(absl::StrCat("address ", address, " is in use"));
  return absl::InvalidArgumentError(
      absl::StrCat("cannot listen on ", address, error == 0 ? "" : ": ", error == 0 ? "" : strerror(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const std::string& address,
                                                            const std::vector<NamedService>& services) {
  static std::once_flag plugins;  // must precede the process's first ServerBuilder
  std::call_once(plugins, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  auto server = std::unique_ptr<RpcServer>(new RpcServer);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  // Without this, two processes can listen on one port and each gets some of the connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  for (const NamedService& service : services) {
    builder.RegisterService(service.service);
    server->service_names_.push_back(service.name);
  }
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || port == 0) return WhyNot(address);
  server->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
  server->SetServing(false);
  return server;
}

RpcServer::~RpcServer() { Shutdown(std::chrono::milliseconds(0)); }

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
