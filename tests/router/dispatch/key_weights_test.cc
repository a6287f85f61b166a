#include "router/dispatch/key_weights.h"

#include <gtest/gtest.h>

#include "router/dispatch/tenant.h"

namespace winnow {
namespace {

TEST(KeyWeights, AreThoseOfTheFileAndOneForOthers) {
  const auto weights = KeyWeights::Parse("# batch jobs\n0.25 sk-batch\n\n  4   sk-chat with spaces \r\n");
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->Of(TenantOf("Bearer sk-batch")), 0.25);
  EXPECT_EQ(weights->Of(TenantOf("Bearer sk-chat with spaces")), 4);
  EXPECT_EQ(weights->Of(TenantOf("Bearer sk-unknown")), 1);
  EXPECT_EQ(weights->Of(TenantOf("")), 1) << "requests without a key";
  EXPECT_EQ(KeyWeights().Of(TenantOf("Bearer sk-batch")), 1);
}

TEST(KeyWeights, ErrorsNameTheLineAndNeverTheKey) {
  for (const char* line : {"0 sk-secret", "-1 sk-secret", "inf sk-secret", "nan sk-secret", "sk-secret", "sk-secret 2",
                           "1 sk-first\n2 sk-first"}) {
    const auto weights = KeyWeights::Parse(std::string("\n") + line);
    ASSERT_FALSE(weights.ok()) << line;
    EXPECT_NE(weights.status().message().find("line "), std::string::npos);
    EXPECT_EQ(weights.status().message().find("sk-"), std::string::npos) << weights.status();
  }
}

}  // namespace
}  // namespace winnow
