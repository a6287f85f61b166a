#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/host_address.h"
#include "common/rpc/credentials.h"
#include "winnow/v1/cluster_admin.grpc.pb.h"

namespace winnow {

// What one router says of its ranks.
struct RouterRanks {
  std::string server;
  v1::ListRanksResponse list;
};

// An order for the ranks of a name. What is absent stays as it is.
struct RankOrder {
  std::string rank;
  std::optional<v1::RankDuty> duty{};
  std::optional<double> weight{};
};

// A router that took orders.
struct RouterOrdered {
  std::string server;
  v1::OrderRankResponse response;
};

// All routers of a cluster as one: those that an operator names, and those that these find in their registry. Errors
// name the router.
class AdminClient {
 public:
  // Every router that is named has to answer.
  static absl::StatusOr<AdminClient> Connect(const std::vector<HostPort>& servers, const Credentials& credentials);

  // One for each router that is in the registry and does not answer at the address there: orders reach it through the
  // registry, nothing else does.
  const std::vector<std::string>& unanswered() const { return unanswered_; }

  // A router that was found in the registry and is gone by now is left out.
  absl::StatusOr<std::vector<RouterRanks>> List() const;
  // Nothing is ordered before every router that was named has answered and found nothing wrong. Routers that were found
  // are told by the registry, or, where it is away, from here. Returns those that were told from here.
  absl::StatusOr<std::vector<RouterOrdered>> Order(const std::vector<RankOrder>& orders) const;
  struct Reloaded {
    std::string server;
    v1::ReloadResponse response;
  };
  absl::StatusOr<std::vector<Reloaded>> Reload() const;

 private:
  struct Router {
    std::string server;
    std::unique_ptr<v1::ClusterAdminService::Stub> stub;
    bool is_named = false;  // otherwise it was found
  };

  static absl::StatusOr<RouterOrdered> OrderAll(const Router& router, const std::vector<RankOrder>& orders,
                                                bool only_check);
  static Router Reach(const std::string& server, const Credentials& credentials, bool is_named);

  std::vector<Router> routers_;
  std::vector<std::string> unanswered_;
};

}  // namespace winnow
