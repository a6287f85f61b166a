#include "router/membership/rank_list.h"

#include "common/base/json.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

Json Describe(const v1::Identity& identity) {
  return {{"rank", identity.rank()},
          {"role", identity.role() == v1::ROLE_CACHE_RANK ? "cache-rank" : "inference-rank"},
          {"incarnation", absl::StrCat(absl::Hex(identity.incarnation(), absl::kZeroPad16))},
          {"address", identity.address()}};
}

Json Describe(const RegistryPresence::State& registry) {
  Json routers = Json::array();
  for (const HostPort& router : registry.routers) routers.push_back(router.ToString());
  return {{"connected", registry.connected}, {"away_s", registry.away_seconds}, {"routers", std::move(routers)}};
}

}  // namespace

const char* StateOf(const RankRecord& record) {
  if (record.suspect || record.late) return "unreachable";
  if (record.drains()) return "draining";
  if (!record.takes_work()) return "cordoned";
  return record.fails() ? "failing" : "serving";
}

std::string RankListJson(const MembershipSnapshot& snapshot, const std::vector<Reachability::Unreachable>& unreachable,
                         const std::optional<RegistryPresence::State>& registry) {
  Json ranks = Json::array();
  for (const RankRecord& record : snapshot.ranks) {
    Json rank = Describe(record.identity);
    rank["metrics"] = record.metrics_address;
    rank["state"] = StateOf(record);
    if (record.fails()) rank["reason"] = record.load.failing();
    if (!record.hosted_by_rank.empty()) rank["hosted_by"] = record.hosted_by_rank;
    if (!record.unreached.empty()) {
      rank["does_not_reach"] = Json::array();
      for (const RankKey& cache : record.unreached) rank["does_not_reach"].push_back(cache.rank);
    }
    rank["running_sequences"] = record.load.running_sequences();
    rank["waiting_sequences"] = record.load.waiting_sequences();
    rank["free_bytes"] = record.load.free_bytes();
    rank["total_bytes"] = record.load.total_bytes();
    ranks.push_back(std::move(rank));
  }
  for (const Reachability::Unreachable& rank : unreachable) {
    Json entry = Describe(rank.identity);
    entry["state"] = "not registered";
    entry["reason"] = rank.reason;
    ranks.push_back(std::move(entry));
  }
  Json list{{"membership_version", snapshot.version}, {"ranks", std::move(ranks)}};
  if (registry) list["registry"] = Describe(*registry);
  return list.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace winnow
