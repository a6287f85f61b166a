#include "router/admin/shared_orders.h"

#include <map>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "router/admin/rank_duty.h"

namespace winnow {
namespace {

constexpr std::string_view kDuty = "/duty", kWeight = "/weight";

// False where it is none that this router understands.
bool Read(std::string_view name, const std::string& value, std::map<std::string, RankOrders>* orders) {
  if (name.ends_with(kDuty)) {
    const std::optional<RankDuty> duty = RankDutyOf(value);
    if (duty) (*orders)[std::string(name.substr(0, name.size() - kDuty.size()))].duty = *duty;
    return duty.has_value();
  }
  double weight = 0;
  if (!name.ends_with(kWeight) || !absl::SimpleAtod(value, &weight)) return false;
  if (!(weight >= RankOrders::kLeastWeight && weight <= RankOrders::kMostWeight)) return false;
  (*orders)[std::string(name.substr(0, name.size() - kWeight.size()))].weight = weight;
  return true;
}

}  // namespace

SharedOrders::SharedOrders(const RegistryUrl& url, const TlsFiles& tls, const std::string& cluster, Registry* ranks)
    : ranks_(ranks),
      values_({.registry = url,
               .tls = tls,
               .folder = absl::StrCat(url.prefix, "/", cluster, "/orders/"),
               .on_values = [this](const SharedValues::Values& values) { Obey(values); }}) {}

absl::Status SharedOrders::Take(const v1::OrderRankRequest& order) {
  SharedValues::Values values;
  if (order.has_duty()) {
    WINNOW_ASSIGN_OR_RETURN(const RankDuty duty, FromProto(order.duty()));
    values[order.rank() + std::string(kDuty)] = NameOf(duty);
  }
  if (order.has_weight()) values[order.rank() + std::string(kWeight)] = absl::StrCat(order.weight());
  return values_.Set(values);
}

void SharedOrders::Obey(const SharedValues::Values& values) {
  std::map<std::string, RankOrders> orders;
  for (const auto& [name, value] : values) {
    if (!Read(name, value, &orders)) spdlog::warn("orders/{} in the registry is \"{}\": no order", name, value);
  }
  ranks_->SetOrders(std::move(orders));
}

}  // namespace winnow
