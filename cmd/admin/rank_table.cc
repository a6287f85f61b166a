#include "cmd/admin/rank_table.h"

#include "absl/strings/str_format.h"
#include "common/base/json.h"

namespace winnow {
namespace {

const char* RoleName(v1::Role role) {
  if (role == v1::ROLE_CACHE_RANK) return "cache-rank";
  return role == v1::ROLE_INFERENCE_RANK ? "inference-rank" : "-";
}

const char* DutyName(v1::RankDuty duty) {
  if (duty == v1::RANK_DUTY_CORDONED) return "cordoned";
  return duty == v1::RANK_DUTY_DRAIN ? "drain" : "serve";
}

std::string MemoryShare(const v1::RankLoad& load) {
  if (load.total_bytes() == 0) return "-";
  const double used = static_cast<double>(load.total_bytes() - load.free_bytes());
  return absl::StrFormat("%.0f %%", 100 * used / static_cast<double>(load.total_bytes()));
}

void AppendHeading(const RouterRanks& router, bool several, std::string* text) {
  if (several)
    absl::StrAppend(text, text->empty() ? "" : "\n", router.list.router().rank(), " at ", router.server, "\n");
}

}  // namespace

std::string RankTable(const std::vector<RouterRanks>& routers) {
  std::string text;
  for (const RouterRanks& router : routers) {
    AppendHeading(router, routers.size() > 1, &text);
    absl::StrAppendFormat(&text, "%-16s %-15s %-12s %8s %8s %8s %8s %7s\n", "rank", "role", "state", "requests",
                          "running", "waiting", "memory", "weight");
    for (const v1::AdminRank& rank : router.list.ranks()) {
      absl::StrAppendFormat(&text, "%-16s %-15s %-12s %8d %8d %8d %8s %7g\n", rank.identity().rank(),
                            RoleName(rank.identity().role()), rank.state(), rank.requests(),
                            rank.load().running_sequences(), rank.load().waiting_sequences(), MemoryShare(rank.load()),
                            rank.weight());
    }
  }
  return text;
}

nlohmann::ordered_json RankJson(const std::vector<RouterRanks>& routers) {
  using Json = nlohmann::ordered_json;
  Json all = Json::array();
  for (const RouterRanks& router : routers) {
    Json ranks = Json::array();
    for (const v1::AdminRank& rank : router.list.ranks()) {
      Json each = {{"rank", rank.identity().rank()},
                   {"role", RoleName(rank.identity().role())},
                   {"state", rank.state()},
                   {"duty", DutyName(rank.duty())},
                   {"weight", rank.weight()},
                   {"address", rank.identity().address()},
                   {"requests", rank.requests()},
                   {"running_sequences", rank.load().running_sequences()},
                   {"waiting_sequences", rank.load().waiting_sequences()},
                   {"free_bytes", rank.load().free_bytes()},
                   {"total_bytes", rank.load().total_bytes()}};
      if (!rank.hosted_by_rank().empty()) each["hosted_by"] = rank.hosted_by_rank();
      ranks.push_back(std::move(each));
    }
    all.push_back({{"server", router.server},
                   {"router", router.list.router().rank()},
                   {"moved_requests", router.list.moved_requests()},
                   {"ranks", std::move(ranks)}});
  }
  return {{"routers", std::move(all)}};
}

std::string WeightTable(const std::vector<RouterRanks>& routers) {
  std::string text;
  for (const RouterRanks& router : routers) {
    AppendHeading(router, routers.size() > 1, &text);
    for (const v1::AdminRank& rank : router.list.ranks()) {
      absl::StrAppendFormat(&text, "%-16s %g\n", rank.identity().rank(), rank.weight());
    }
  }
  return text;
}

}  // namespace winnow
