#include "router/membership/rank_orders.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace winnow {

absl::Status StandingOrders::CheckWeight(double weight) {
  if (weight >= RankOrders::kLeastWeight && weight <= RankOrders::kMostWeight) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a weight is a number from ", RankOrders::kLeastWeight, " to ",
                                                 RankOrders::kMostWeight, ", not ", weight));
}

absl::Status StandingOrders::CheckKnown(const std::string& rank, const std::set<std::string>& ranks) const {
  if (orders_.contains(rank) || ranks.contains(rank)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("there is no rank \"", rank, "\"; ",
                                          ranks.empty() ? "none has joined" : "there are ",
                                          absl::StrJoin(ranks, ", ")));
}

bool StandingOrders::Hold(ByName orders) {
  std::erase_if(orders, [](const auto& order) { return order.second == RankOrders(); });
  if (orders == orders_) return false;
  orders_ = std::move(orders);
  return true;
}

RankOrders StandingOrders::Of(const std::string& rank) const {
  const auto ordered = orders_.find(rank);
  return ordered == orders_.end() ? RankOrders() : ordered->second;
}

}  // namespace winnow
