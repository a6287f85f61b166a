#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"

namespace winnow {

// What an operator wants of a rank. A rank that is to drain takes no work either, and requests that can go on elsewhere
// leave it.
enum class RankDuty { kServe, kCordoned, kDrain };

// What operators have ordered for a rank, by its name alone: it holds for every start of it, for as long as the
// registry lives.
struct RankOrders {
  RankDuty duty = RankDuty::kServe;
  double weight = 1;  // it gets work as if it were so many ranks

  static constexpr double kLeastWeight = 0.01;
  static constexpr double kMostWeight = 100;
  friend bool operator==(const RankOrders&, const RankOrders&) = default;
};

// What operators have ordered, by the names of ranks; the names in it are of those whose orders are not the ones of
// every rank. Not thread-safe.
class StandingOrders {
 public:
  using ByName = std::map<std::string, RankOrders>;

  // INVALID_ARGUMENT for a weight that is none.
  static absl::Status CheckWeight(double weight);
  // NOT_FOUND, with the names that there are, for one that is neither in here nor among `ranks`.
  absl::Status CheckKnown(const std::string& rank, const std::set<std::string>& ranks) const;

  // These and no others hold from now on; false: they are those that held.
  bool Hold(ByName orders);
  RankOrders Of(const std::string& rank) const;
  const ByName& by_name() const { return orders_; }

 private:
  ByName orders_;
};

}  // namespace winnow
