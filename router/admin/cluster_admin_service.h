#pragma once
#include <functional>

#include "router/dispatch/dispatcher.h"
#include "router/membership/registry.h"
#include "winnow/v1/cluster_admin.grpc.pb.h"

namespace winnow {

// What operators see of the ranks of one router, and order: the registry keeps the orders, the dispatcher obeys them.
class ClusterAdminServiceImpl final : public v1::ClusterAdminService::Service {
 public:
  // Both must outlive the server. `reload` reads files again; any thread.
  ClusterAdminServiceImpl(v1::Identity self, Registry* registry, const Dispatcher* dispatcher,
                          std::function<v1::ReloadResponse()> reload);

  grpc::Status ListRanks(grpc::ServerContext* context, const v1::ListRanksRequest* request,
                         v1::ListRanksResponse* response) override;
  grpc::Status OrderRank(grpc::ServerContext* context, const v1::OrderRankRequest* request,
                         v1::OrderRankResponse* response) override;
  grpc::Status Reload(grpc::ServerContext* context, const v1::ReloadRequest* request,
                      v1::ReloadResponse* response) override;

 private:
  const v1::Identity self_;
  Registry* const registry_;
  const Dispatcher* const dispatcher_;
  const std::function<v1::ReloadResponse()> reload_;
};

}  // namespace winnow
