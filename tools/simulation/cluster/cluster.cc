#include "tools/simulation/cluster/cluster.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace winnow::simulation {

RouterCounts& RouterCounts::operator+=(const RouterCounts& other) {
  reattaches += other.reattaches;
  recomputes += other.recomputes;
  hand_overs += other.hand_overs;
  resumed += other.resumed;
  resumed_recompute += other.resumed_recompute;
  promotions += other.promotions;
  expired_leases += other.expired_leases;
  for (size_t i = 0; i < lost_attempts.size(); ++i) lost_attempts[i] += other.lost_attempts[i];
  return *this;
}

Cluster::Cluster(uint64_t seed, const ClusterShape& shape, bool tracing)
    : shape_(shape), runtime_(seed), network_(&runtime_) {
  runtime_.set_tracing(tracing);
  for (size_t i = 0; i < shape.inference.size(); ++i) ranks_.push_back(absl::StrCat("inference-", i));
  for (size_t i = 0; i < shape.caches.size(); ++i) ranks_.push_back(absl::StrCat("cache-", i));
  for (size_t i = 0; i < shape.num_routers; ++i) routers_.push_back(absl::StrCat("router-", i));
  for (size_t i = 0; i < ranks_.size(); ++i) addresses_[ranks_[i]] = {absl::StrCat("10.0.1.", i), 7000};
  for (size_t i = 0; i < routers_.size(); ++i) addresses_[routers_[i]] = {absl::StrCat("10.0.0.", i + 1), 7000};
  for (const auto& [name, address] : addresses_) present_[name] = {};
  for (const std::string& router : routers_) Start(router);
  for (const std::string& rank : ranks_) Start(rank);
}

void Cluster::Start(const std::string& name) {
  Present& present = present_.at(name);
  WINNOW_CHECK(present.process == nullptr);
  const HostPort& address = addresses_.at(name);
  Process* const process = runtime_.NewProcess(name, address.ToString());
  present.process = process;
  RankPlace place{.name = name, .incarnation = runtime_.Random() | 1, .address = address, .routers = {}};
  for (const std::string& router : routers_) place.routers.push_back(addresses_.at(router));
  runtime_.Trace(name, absl::StrCat("starts, incarnation ", place.incarnation));
  runtime_.Spawn(process, [this, name, place, process] {
    Present made{.process = process, .inference = nullptr, .cache = nullptr, .router = nullptr};
    Make(name, place, made);
    Present& present = present_.at(name);
    if (present.process == process) present = std::move(made);
  });
}

// In a thread of the process.
void Cluster::Make(const std::string& name, const RankPlace& place, Present& made) {
  const auto number = static_cast<size_t>(name.back() - '0');
  if (name.starts_with("inference")) {
    made.inference = std::make_shared<InferenceProcess>(&rpc_, &frames_, place, shape_.inference[number]);
  } else if (name.starts_with("cache")) {
    made.cache = std::make_shared<CacheProcess>(&rpc_, &frames_, place, shape_.caches[number]);
  } else {
    made.router =
        std::make_shared<RouterProcess>(&rpc_, name, place.incarnation, place.address, shape_.shards, shape_.replicas);
  }
}

void Cluster::Kill(const std::string& name) {
  Present& present = present_.at(name);
  if (present.process == nullptr) return;
  runtime_.Trace(name, "is killed");
  network_.Kill(present.process);
  past_.push_back(std::exchange(present, {}));
  if (name.starts_with("router") && on_router_killed) on_router_killed(past_.back().process);
}

const CacheProcess* Cluster::cache(const std::string& rank) const {
  return present_.at(rank).cache.get();
}

bool Cluster::IsComplete() const {
  return std::all_of(routers_.begin(), routers_.end(), [&](const std::string& name) {
    const RouterProcess* const router = this->router(name);
    if (router == nullptr) return false;
    const MembershipSnapshot snapshot = router->registry().Snapshot();
    if (snapshot.ranks.size() != ranks_.size()) return false;
    return std::all_of(snapshot.ranks.begin(), snapshot.ranks.end(),
                       [](const RankRecord& rank) { return rank.takes_work() && rank.unreached.empty(); });
  });
}

std::string Cluster::Remainder() const {
  std::string left;
  for (const auto& [name, present] : present_) {
    const auto note = [&, &name = name](const char* what, uint64_t count) {
      if (count != 0) absl::StrAppend(&left, left.empty() ? "" : ", ", name, " has ", count, " ", what);
    };
    if (present.router != nullptr) {
      const DispatcherCounters& counters = present.router->dispatcher().counters();
      note("running requests", static_cast<uint64_t>(counters.running.load()));
      note("waiting requests", static_cast<uint64_t>(counters.waiting.load()));
      note("requests", present.router->dispatcher().num_requests());
    }
    if (present.inference != nullptr) {
      const InferenceRankMetrics& metrics = present.inference->metrics();
      note("running sequences", metrics.running_sequences);
      note("waiting sequences", metrics.waiting_sequences);
      note("slot pages in use", metrics.slot_pages_used);
      note("bytes of prefill memory in use", metrics.prefill_kv_bytes);
      note("answers held", metrics.held_requests);
    }
    if (present.cache != nullptr) {
      const CacheRankMetrics& metrics = present.cache->metrics();
      note("attached sequences", metrics.active_sequences.get());
      note("detached sequences", metrics.detached_sequences.get());
      note("blocks in use", metrics.blocks_used.get());
      note("blocks reserved", metrics.blocks_reserved.get());
    }
  }
  return left;
}

RouterCounts Cluster::CountsOfRouters() const {
  RouterCounts sum;
  const auto add = [&](const Present& present) {
    if (present.router == nullptr) return;
    const DispatcherCounters& counters = present.router->dispatcher().counters();
    RouterCounts counts{.reattaches = counters.failovers_reattach,
                        .recomputes = counters.failovers_recompute,
                        .hand_overs = counters.hand_overs,
                        .resumed = counters.resumed,
                        .resumed_recompute = counters.resumed_recompute,
                        .promotions = counters.promotions,
                        .expired_leases = present.router->expired_leases()};
    std::copy(counters.lost_attempts.begin(), counters.lost_attempts.end(), counts.lost_attempts.begin());
    sum += counts;
  };
  for (const auto& [name, present] : present_) add(present);
  for (const Present& past : past_) add(past);
  return sum;
}

}  // namespace winnow::simulation
