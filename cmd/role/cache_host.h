#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cache_rank/service/cache_rank.h"
#include "cmd/role/options/cache_options.h"
#include "cmd/role/role_process.h"
#include "common/rpc/credentials.h"
#include "common/rpc/rpc_server.h"
#include "winnow/v1/membership.pb.h"

namespace winnow {

// A cache rank in this process, alone or beside an inference rank.
class CacheHost {
 public:
  // RESOURCE_EXHAUSTED, with the arithmetic, when the memory for KV is more than there is. `spans`: of traced
  // sequences, or null. `credentials`: to cache ranks that hold replicas.
  static absl::StatusOr<std::unique_ptr<CacheHost>> Create(const CacheOptions& options, const v1::Identity& identity,
                                                           std::unique_ptr<Transport> transport,
                                                           SpanSink* spans = nullptr,
                                                           const Credentials& credentials = {});

  CacheRank& rank() { return *rank_; }
  std::vector<NamedService> services() const;
  // Identity, fingerprint and metrics address, for the router. `hosted_by` is the inference rank that shares the
  // process, or "".
  v1::RegisterRequest Registration(const std::string& metrics_address, const std::string& hosted_by) const;

 private:
  CacheHost() = default;
  std::unique_ptr<CacheRank> rank_;
};

}  // namespace winnow
