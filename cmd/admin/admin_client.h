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

// All routers that an operator names, as one: what is asked and ordered goes to each. Errors name the router.
class AdminClient {
 public:
  AdminClient(const std::vector<HostPort>& servers, const Credentials& credentials);

  absl::StatusOr<std::vector<RouterRanks>> List() const;
  // Nothing is ordered before every router has answered and knows all of the ranks. NOT_FOUND names those it knows.
  absl::Status Order(const std::vector<RankOrder>& orders) const;
  struct Reloaded {
    std::string server;
    v1::ReloadResponse response;
  };
  absl::StatusOr<std::vector<Reloaded>> Reload() const;

 private:
  struct Router {
    std::string server;
    std::unique_ptr<v1::ClusterAdminService::Stub> stub;
  };
  std::vector<Router> routers_;
};

}  // namespace winnow
