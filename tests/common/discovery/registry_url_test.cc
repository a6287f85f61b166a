#include "common/discovery/registry_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace winnow {
namespace {

using testing::HasSubstr;

TEST(RegistryUrl, HasEndpointsAPrefixAndMaybeTls) {
  const auto one = RegistryUrl::Parse("etcd://10.0.0.1:2379");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(*one, (RegistryUrl{.endpoints = {{"10.0.0.1", 2379}}}));
  EXPECT_EQ(one->prefix, "winnow");
  const auto many = RegistryUrl::Parse("etcds://etcd-0.etcd:2379,[::1]:2380/sites/one/");
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_EQ(*many, (RegistryUrl{
                       .endpoints = {{"etcd-0.etcd", 2379}, {"::1", 2380}}, .prefix = "sites/one", .encrypted = true}));
}

TEST(RegistryUrl, IsReadBackFromItsText) {
  for (const char* text : {"etcd://a:1", "etcd://a:1/", "etcds://a:1,b:2/x", "etcd://[::1]:5/x/y"}) {
    const auto url = RegistryUrl::Parse(text);
    ASSERT_TRUE(url.ok()) << url.status();
    EXPECT_EQ(*RegistryUrl::Parse(url->ToString()), *url) << text;
  }
}

TEST(RegistryUrl, ErrorsNameThePartThatIsWrong) {
  for (const auto& [text, part] : {std::pair{"10.0.0.1:2379", "expected etcd://"},
                                   {"consul://10.0.0.1:8500", "expected etcd://"},
                                   {"http://10.0.0.1:2379", "expected etcd://"},
                                   {"etcd://", "no HOST:PORT after \"etcd://\""},
                                   {"etcds:///x", "no HOST:PORT after \"etcds://\""},
                                   {"etcd://host", "the endpoints \"host\""},
                                   {"etcd://a:1,b", "the endpoints \"a:1,b\""},
                                   {"etcd://a:0", "a:0: port 0"},
                                   {"etcd://user:secret@a:1", "user names and passwords"},
                                   {"etcd://a:1/x?y", "the character '?'"}}) {
    const auto url = RegistryUrl::Parse(text);
    EXPECT_EQ(url.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(url.status().message()), HasSubstr(part));
    EXPECT_THAT(std::string(url.status().message()), testing::Not(HasSubstr("secret")));
  }
}

}  // namespace
}  // namespace winnow
