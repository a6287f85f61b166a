#include "common/discovery/registry_record.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

const RegistryUrl kUrl = *RegistryUrl::Parse("etcd://a:1/p");

TEST(RegistryRecord, RoutersHaveAKeyForEachAddressAndRanksOneForEachName) {
  const RegistryRecord router{v1::ROLE_ROUTER, "router-0", 0xabc, "10.0.0.1:8001", "10.0.0.1:8000"};
  EXPECT_EQ(router.Key(kUrl, "local"), "p/local/routers/10.0.0.1:8001");
  EXPECT_EQ(router.Value(),
            R"({"name":"router-0","incarnation":"0000000000000abc","grpc":"10.0.0.1:8001","http":"10.0.0.1:8000"})");
  const RegistryRecord rank{v1::ROLE_INFERENCE_RANK, "inference-1", 7, "10.0.0.2:8002", ""};
  EXPECT_EQ(rank.Key(kUrl, "local"), "p/local/inference-ranks/inference-1");
  EXPECT_EQ(rank.Value(), R"({"name":"inference-1","incarnation":"0000000000000007","grpc":"10.0.0.2:8002"})");
  EXPECT_EQ((RegistryRecord{v1::ROLE_CACHE_RANK, "cache-0", 7, "a:1", ""}.Key(kUrl, "x")), "p/x/cache-ranks/cache-0");
  EXPECT_TRUE(router.Key(kUrl, "local").starts_with(RouterKeys(kUrl, "local")));
}

TEST(RegistryRecord, AddressesOfRoutersAreReadFromTheirValues) {
  const RegistryRecord router{v1::ROLE_ROUTER, "router \"0\" \xff", 1, "[::1]:8001", ""};
  EXPECT_EQ(RouterAddressOf(router.Value()), (HostPort{"::1", 8001}));
  EXPECT_EQ(RouterAddressOf(R"({"grpc":"b:2","new":[1]})"), (HostPort{"b", 2}));
  for (const char* value : {"", "{", "[]", "\"a:1\"", "{}", R"({"grpc":1})", R"({"grpc":"a"})", R"({"grpc":"a:0"})"}) {
    EXPECT_EQ(RouterAddressOf(value), std::nullopt) << value;
  }
}

}  // namespace
}  // namespace winnow
