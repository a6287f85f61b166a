#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

namespace winnow {

// How much each tenant has been served, in tokens by its weight: whoever has had least goes first (the virtual token
// counters of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). A token that is generated counts
// as kGeneratedTokenCost prompt tokens. So two tenants that always have something waiting are served in the ratio of
// their weights, up to what one of their requests takes, whatever their lengths and however many they send.
//
// A tenant that comes back is lifted to the least of those that are there: what it did not use is not kept for it.
class FairShare {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr double kGeneratedTokenCost = 2;

  // One more request of the tenant is there, and one fewer.
  void Arrive(const std::string& tenant, double weight, Time now);
  void Leave(const std::string& tenant);

  // May be negative: what was charged before and not computed in the end. The tenant must be there.
  void Charge(const std::string& tenant, double prompt_tokens);
  double served(const std::string& tenant) const { return tenants_.at(tenant).served; }

  // When a request of the tenant was admitted last; its arrival before that.
  void Admitted(const std::string& tenant, Time now) { tenants_.at(tenant).last_admitted = now; }
  Time last_admitted(const std::string& tenant) const { return tenants_.at(tenant).last_admitted; }

  size_t num_known() const { return tenants_.size(); }

 private:
  struct Tenant {
    double served = 0;
    double weight = 1;
    uint64_t requests = 0;
    Time last_admitted{};
  };
  // The least of those that are there, or were there last.
  double Floor() const;

  std::unordered_map<std::string, Tenant> tenants_;  // with requests, or served more than the floor
  double last_floor_ = 0;
};

}  // namespace winnow
