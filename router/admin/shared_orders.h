#pragma once
#include <string>

#include "common/discovery/shared_values.h"
#include "router/membership/registry.h"
#include "winnow/v1/cluster_admin.pb.h"

namespace winnow {

// Orders that all routers of a cluster obey: in etcd, below PREFIX/CLUSTER/orders/, RANK/duty is "serve", "cordoned" or
// "drain", and RANK/weight a number. Each router has its table of ranks hold what stands there.
class SharedOrders {
 public:
  // `ranks` must outlive it.
  SharedOrders(const RegistryUrl& url, const TlsFiles& tls, const std::string& cluster, Registry* ranks);

  // The order, which is a good one, holds here when it returns. UNAVAILABLE says why it is not in etcd yet.
  absl::Status Take(const v1::OrderRankRequest& order);
  // Those that were given before this router began hold, unless etcd cannot be asked.
  bool IsSettled() const { return values_.IsSettled(); }

 private:
  void Obey(const SharedValues::Values& values);

  Registry* const ranks_;
  SharedValues values_;
};

}  // namespace winnow
