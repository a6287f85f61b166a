#pragma once
#include <string>
#include <vector>

#include "common/config/parse_value.h"

namespace winnow {

// What of a cluster over several machines `winnow up` starts on this one. Ranks are numbered through: names go on from
// those of the machines before.
struct ClusterPart {
  std::string host = {};  // of this machine, as the others reach it; empty: it is the only one
  bool has_router = true;
  std::vector<HostPort> routers = {};  // gRPC addresses of those on other machines
  int first_router = 0;
  int first_inference = 0;
  int first_prefill = 0;
  int first_decode = 0;
  int first_cache = 0;
  int all_cache_ranks = 0;  // of all machines, here and below
  int all_decoding_ranks = 0;
};

}  // namespace winnow
