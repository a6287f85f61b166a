#pragma once
#include <functional>
#include <string>
#include <vector>

#include "router/admin/shared_orders.h"
#include "router/dispatch/dispatcher.h"
#include "router/membership/registry.h"
#include "winnow/v1/cluster_admin.grpc.pb.h"

namespace winnow {

// What operators see of the ranks of one router, and order: the table of ranks keeps the orders, the
// dispatcher obeys them.
class ClusterAdminServiceImpl final : public v1::ClusterAdminService::Service {
 public:
  struct Parts {
    v1::Identity self;
    // These must outlive the server. Without shared orders an order is this router's alone.
    Registry* ranks = nullptr;
    const Dispatcher* dispatcher = nullptr;
    SharedOrders* shared_orders = nullptr;
    // Reads files again.
    std::function<v1::ReloadResponse()> reload;
    // gRPC addresses of the routers in the registry.
    std::function<std::vector<std::string>()> routers;
  };
  // The functions are called from any thread.
  explicit ClusterAdminServiceImpl(Parts parts);

  grpc::Status ListRanks(grpc::ServerContext* context, const v1::ListRanksRequest* request,
                         v1::ListRanksResponse* response) override;
  grpc::Status OrderRank(grpc::ServerContext* context, const v1::OrderRankRequest* request,
                         v1::OrderRankResponse* response) override;
  grpc::Status Reload(grpc::ServerContext* context, const v1::ReloadRequest* request,
                      v1::ReloadResponse* response) override;

 private:
  const Parts parts_;
};

}  // namespace winnow
