#include "router/membership/scrape_targets.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

RankRecord Rank(v1::Role role, const std::string& name, const std::string& metrics_address) {
  RankRecord record;
  record.identity.set_role(role);
  record.identity.set_rank(name);
  record.metrics_address = metrics_address;
  return record;
}

TEST(ScrapeTargets, AreTheRouterAndEveryProcessOnce) {
  MembershipSnapshot snapshot{.version = 1, .ranks = {}};
  snapshot.ranks.push_back(Rank(v1::ROLE_INFERENCE_RANK, "inference-0", "10.0.0.2:9101"));
  snapshot.ranks.push_back(Rank(v1::ROLE_CACHE_RANK, "cache-0", "10.0.0.3:9101"));
  snapshot.ranks.push_back(Rank(v1::ROLE_CACHE_RANK, "cache-1", "10.0.0.2:9101"));
  snapshot.ranks.back().hosted_by_rank = "inference-0";
  EXPECT_EQ(ScrapeTargetsJson(snapshot, "router-0", "router.example:9100"),
            R"([{"targets":["router.example:9100"],"labels":{"role":"router","rank":"router-0"}},)"
            R"({"targets":["10.0.0.2:9101"],"labels":{"role":"inference-rank","rank":"inference-0"}},)"
            R"({"targets":["10.0.0.3:9101"],"labels":{"role":"cache-rank","rank":"cache-0"}}])");
}

}  // namespace
}  // namespace winnow
