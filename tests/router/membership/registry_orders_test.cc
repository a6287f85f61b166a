#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/router/membership/registry_fixture.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

TEST_F(RegistryTest, OrdersHoldForEveryStartOfARank) {
  int changes = 0;
  auto subscription = registry_.Subscribe([&](const MembershipSnapshot&) { ++changes; });
  ASSERT_TRUE(registry_.Register(Inference()).ok());
  const std::string name = Inference().identity().rank();
  const auto record = [&] { return registry_.Snapshot().ranks.at(0); };
  ASSERT_TRUE(registry_.SetDuty(name, RankDuty::kCordoned).ok());
  EXPECT_EQ(changes, 2);
  EXPECT_FALSE(record().takes_work());
  EXPECT_FALSE(record().drains());
  EXPECT_FALSE(registry_.IsToDrain(KeyOf(record().identity)));
  ASSERT_TRUE(registry_.SetDuty(name, RankDuty::kDrain).ok());
  ASSERT_TRUE(registry_.SetWeight(name, 2).ok());
  EXPECT_TRUE(registry_.IsToDrain(KeyOf(record().identity)));

  registry_.Leave(Inference().identity());
  EXPECT_EQ(registry_.Orders().at(name), (RankOrders{.duty = RankDuty::kDrain, .weight = 2}));
  ASSERT_TRUE(registry_.Register(Inference(name, 2)).ok());
  EXPECT_TRUE(record().drains());
  EXPECT_EQ(record().orders.weight, 2);
  EXPECT_FALSE(registry_.IsToDrain(KeyOf(Inference().identity()))) << "that start of it is gone";

  ASSERT_TRUE(registry_.SetDuty(name, RankDuty::kServe).ok());
  ASSERT_TRUE(registry_.SetWeight(name, 1).ok());
  EXPECT_TRUE(record().takes_work());
  EXPECT_TRUE(registry_.Orders().empty());
}

TEST_F(RegistryTest, OrdersFromElsewhereReplaceAllOthers) {
  ASSERT_TRUE(registry_.Register(Inference("inference-0")).ok());
  ASSERT_TRUE(registry_.SetDuty("inference-0", RankDuty::kDrain).ok());
  const std::map<std::string, RankOrders> orders = {{"inference-1", {.duty = RankDuty::kCordoned, .weight = 3}}};
  registry_.SetOrders(orders);
  EXPECT_EQ(registry_.Orders(), orders);
  EXPECT_TRUE(registry_.Snapshot().ranks.at(0).takes_work());
  ASSERT_TRUE(registry_.Register(Inference("inference-1")).ok());
  EXPECT_FALSE(registry_.Snapshot().ranks.at(1).takes_work()) << "they hold for ranks to come";
  registry_.SetOrders({});
  EXPECT_TRUE(registry_.Snapshot().ranks.at(1).takes_work());
  EXPECT_TRUE(registry_.Orders().empty());
}

TEST_F(RegistryTest, OrdersThatCannotBeAreRefused) {
  EXPECT_THAT(std::string(registry_.SetDuty("inference-7", RankDuty::kDrain).message()), HasSubstr("none has joined"));
  ASSERT_TRUE(registry_.Register(Inference("inference-0")).ok());
  ASSERT_TRUE(registry_.Register(Cache()).ok());
  const absl::Status unknown = registry_.SetDuty("inference-7", RankDuty::kDrain);
  EXPECT_TRUE(absl::IsNotFound(unknown));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("there are cache-0, inference-0"));
  for (const double weight : {0.0, -1.0, 101.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(registry_.SetWeight("inference-0", weight))) << weight;
  }
}

}  // namespace
}  // namespace winnow
