#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/credentials.h"
#include "grpcpp/server.h"

namespace winnow {

// A service and the name that the health service knows it by.
struct NamedService {
  grpc::Service* service = nullptr;
  std::string name;  // "winnow.v1.CacheService"
};

// NamedService{&impl, "winnow.v1.CacheService"} from the generated class: Named<v1::CacheService>(&impl).
template <class Generated>
NamedService Named(grpc::Service* service) {
  return {service, Generated::service_full_name()};
}

// A gRPC server of a process: its services, grpc.health.v1 and reflection. Services must outlive
// it.
class RpcServer {
 public:
  // Listens on `address` ("host:port"; port 0 lets the system choose) and serves from now on, health NOT_SERVING until
  // SetServing. However many calls a client opens, and cancels again, threads are bounded: calls that block one get
  // RESOURCE_EXHAUSTED beyond some hundreds at a time. ALREADY_EXISTS when the port is taken, INVALID_ARGUMENT when the
  // address is none of this machine.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const std::string& address,
                                                          const std::vector<NamedService>& services,
                                                          const Credentials& credentials = {});
  ~RpcServer();  // Shutdown without grace

  // "host:port" with the port that was chosen.
  const std::string& address() const { return address_; }

  // Health of the whole server ("") and of every service. Any thread.
  void SetServing(bool serving);
  // Health of one service.
  void SetServing(const std::string& service_name, bool serving);

  // Stops accepting calls, gives those under way `grace` to end, then cancels them; returns when all handlers have
  // returned.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  RpcServer() = default;
  std::string address_;
  std::vector<std::string> service_names_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace winnow
