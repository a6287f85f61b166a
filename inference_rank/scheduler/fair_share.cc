#include "inference_rank/scheduler/fair_share.h"

#include <algorithm>
#include <limits>

#include "common/base/check.h"

namespace winnow {

double FairShare::Floor() const {
  double floor = std::numeric_limits<double>::infinity();
  for (const auto& [name, tenant] : tenants_) {
    if (tenant.requests > 0) floor = std::min(floor, tenant.served);
  }
  return std::max(last_floor_, floor == std::numeric_limits<double>::infinity() ? 0 : floor);
}

void FairShare::Arrive(const std::string& tenant, double weight, Time now) {
  WINNOW_CHECK(weight > 0);
  const double floor = Floor();
  Tenant& entry = tenants_[tenant];
  if (entry.requests++ == 0) {
    entry.served = std::max(entry.served, floor);
    entry.last_admitted = now;
  }
  entry.weight = weight;
}

void FairShare::Leave(const std::string& tenant) {
  Tenant& entry = tenants_.at(tenant);
  WINNOW_CHECK(entry.requests > 0);
  if (--entry.requests > 0) return;
  const bool others =
      std::any_of(tenants_.begin(), tenants_.end(), [](const auto& t) { return t.second.requests > 0; });
  last_floor_ = others ? Floor() : std::max(last_floor_, entry.served);
  // They would be lifted anyway.
  std::erase_if(tenants_, [&](const auto& t) { return t.second.requests == 0 && t.second.served <= last_floor_; });
}

void FairShare::Charge(const std::string& tenant, double prompt_tokens) {
  Tenant& entry = tenants_.at(tenant);
  entry.served += prompt_tokens / entry.weight;
}

}  // namespace winnow
