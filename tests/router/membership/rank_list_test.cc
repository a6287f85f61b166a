#include "router/membership/rank_list.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

v1::Identity Identity(v1::Role role, const std::string& rank, uint64_t incarnation) {
  v1::Identity identity;
  identity.set_role(role);
  identity.set_rank(rank);
  identity.set_incarnation(incarnation);
  identity.set_address("10.0.0.2:4000");
  return identity;
}

TEST(RankList, SaysWhoServesAndWhyOthersDoNot) {
  MembershipSnapshot snapshot{.version = 7, .ranks = {}};
  RankRecord inference;
  inference.identity = Identity(v1::ROLE_INFERENCE_RANK, "inference-0", 0xab);
  inference.metrics_address = "10.0.0.2:9101";
  inference.load.set_running_sequences(3);
  inference.load.set_free_bytes(5);
  inference.load.set_total_bytes(9);
  inference.unreached = {{"cache-1", 2}};
  snapshot.ranks.push_back(inference);
  const std::vector<Reachability::Unreachable> unreachable = {
      {Identity(v1::ROLE_CACHE_RANK, "cache-2", 1), "cannot reach cache-2", {}}};
  EXPECT_EQ(RankListJson(snapshot, unreachable),
            R"({"membership_version":7,"ranks":[)"
            R"({"rank":"inference-0","role":"inference-rank","incarnation":"00000000000000ab",)"
            R"("address":"10.0.0.2:4000","metrics":"10.0.0.2:9101","state":"serving","does_not_reach":["cache-1"],)"
            R"("running_sequences":3,"waiting_sequences":0,"free_bytes":5,"total_bytes":9},)"
            R"({"rank":"cache-2","role":"cache-rank","incarnation":"0000000000000001","address":"10.0.0.2:4000",)"
            R"("state":"not registered","reason":"cannot reach cache-2"}]})");
}

TEST(RankList, SaysWhatFailsOnARankOfWhichNothingComes) {
  RankRecord failing;
  failing.identity = Identity(v1::ROLE_INFERENCE_RANK, "inference-0", 0xab);
  failing.load.set_failing("no link opens");
  const std::string list = RankListJson({.version = 7, .ranks = {failing}}, {});
  EXPECT_NE(list.find(R"("state":"failing","reason":"no link opens")"), std::string::npos) << list;
  failing.orders.duty = RankDuty::kCordoned;
  EXPECT_STREQ(StateOf(failing), "cordoned") << "what was ordered comes first";
}

TEST(RankList, SaysHowTheRouterStandsWithTheRegistry) {
  const RegistryPresence::State away{
      .connected = false, .away_seconds = 2.5, .lost_leases = 0, .routers = {{"10.0.0.1", 8001}, {"10.0.0.2", 8001}}};
  EXPECT_EQ(RankListJson({}, {}, away),
            R"({"membership_version":0,"ranks":[],)"
            R"("registry":{"connected":false,"away_s":2.5,"routers":["10.0.0.1:8001","10.0.0.2:8001"]}})");
}

}  // namespace
}  // namespace winnow
