#include "router/membership/scrape_targets.h"

#include "common/base/json.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

Json Target(const std::string& address, const char* role, const std::string& rank) {
  return {{"targets", Json::array({address})}, {"labels", {{"role", role}, {"rank", rank}}}};
}

}  // namespace

std::string ScrapeTargetsJson(const MembershipSnapshot& snapshot, const std::string& router_rank,
                              const std::string& own_address) {
  Json targets = Json::array({Target(own_address, "router", router_rank)});
  for (const RankRecord& record : snapshot.ranks) {
    if (!record.hosted_by_rank.empty() || record.metrics_address.empty()) continue;
    const bool is_cache_rank = record.identity.role() == v1::ROLE_CACHE_RANK;
    targets.push_back(
        Target(record.metrics_address, is_cache_rank ? "cache-rank" : "inference-rank", record.identity.rank()));
  }
  return targets.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace winnow
