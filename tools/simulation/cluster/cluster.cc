#include "tools/simulation/cluster/cluster.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace winnow::simulation {
namespace {

const HostPort kRouter{"10.0.0.1", 7000};

}  // namespace

Cluster::Cluster(uint64_t seed, const ClusterShape& shape, bool tracing)
    : shape_(shape), runtime_(seed), network_(&runtime_) {
  runtime_.set_tracing(tracing);
  for (size_t i = 0; i < shape.inference.size(); ++i) ranks_.push_back(absl::StrCat("inference-", i));
  for (size_t i = 0; i < shape.caches.size(); ++i) ranks_.push_back(absl::StrCat("cache-", i));
  present_.resize(ranks_.size());
  router_process_ = runtime_.NewProcess("router", kRouter.ToString());
  runtime_.Spawn(router_process_, [this] { router_ = std::make_unique<RouterProcess>(&rpc_, kRouter, shape_.shards); });
  for (const std::string& rank : ranks_) Start(rank);
}

size_t Cluster::IndexOf(const std::string& rank) const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), rank);
  WINNOW_CHECK(found != ranks_.end());
  return static_cast<size_t>(found - ranks_.begin());
}

Process* Cluster::Find(const std::string& rank) const {
  return rank == "router" ? router_process_ : present_[IndexOf(rank)].process;
}

void Cluster::Start(const std::string& rank) {
  const size_t index = IndexOf(rank);
  WINNOW_CHECK(present_[index].process == nullptr);
  const HostPort address{absl::StrCat("10.0.1.", index), 7000};
  Process* const process = runtime_.NewProcess(rank, address.ToString());
  present_[index].process = process;
  const RankPlace place{.name = rank, .incarnation = runtime_.Random() | 1, .address = address, .router = kRouter};
  runtime_.Trace(rank, absl::StrCat("starts, incarnation ", place.incarnation));
  runtime_.Spawn(process, [this, index, place, process] {
    if (IsInference(index)) {
      auto made = std::make_shared<InferenceProcess>(&rpc_, &frames_, place, shape_.inference[index]);
      if (present_[index].process == process) present_[index].inference = std::move(made);
    } else {
      auto made =
          std::make_shared<CacheProcess>(&rpc_, &frames_, place, shape_.caches[index - shape_.inference.size()]);
      if (present_[index].process == process) present_[index].cache = std::move(made);
    }
  });
}

void Cluster::Kill(const std::string& rank) {
  Rank& present = present_[IndexOf(rank)];
  if (present.process == nullptr) return;
  runtime_.Trace(rank, "is killed");
  network_.Kill(present.process);
  past_.push_back(std::exchange(present, {}));
}

const InferenceProcess* Cluster::inference(const std::string& rank) const {
  return present_[IndexOf(rank)].inference.get();
}

const CacheProcess* Cluster::cache(const std::string& rank) const {
  return present_[IndexOf(rank)].cache.get();
}

bool Cluster::IsComplete() const {
  if (router_ == nullptr) return false;
  const MembershipSnapshot snapshot = router_->registry().Snapshot();
  if (snapshot.ranks.size() != ranks_.size()) return false;
  return std::all_of(snapshot.ranks.begin(), snapshot.ranks.end(),
                     [](const RankRecord& rank) { return rank.takes_work() && rank.unreached.empty(); });
}

std::string Cluster::Remainder() const {
  std::string left;
  const auto note = [&](const std::string& where, const char* what, uint64_t count) {
    if (count != 0) absl::StrAppend(&left, left.empty() ? "" : ", ", where, " has ", count, " ", what);
  };
  const DispatcherCounters& counters = router_->dispatcher().counters();
  note("router", "running requests", static_cast<uint64_t>(counters.running.load()));
  note("router", "waiting requests", static_cast<uint64_t>(counters.waiting.load()));
  note("router", "requests", router_->dispatcher().num_requests());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = present_[i];
    if (rank.inference != nullptr) {
      const InferenceRankMetrics& metrics = rank.inference->metrics();
      note(ranks_[i], "running sequences", metrics.running_sequences);
      note(ranks_[i], "waiting sequences", metrics.waiting_sequences);
      note(ranks_[i], "slot pages in use", metrics.slot_pages_used);
      note(ranks_[i], "bytes of prefill memory in use", metrics.prefill_kv_bytes);
    }
    if (rank.cache != nullptr) {
      const CacheRankMetrics& metrics = rank.cache->metrics();
      note(ranks_[i], "attached sequences", metrics.active_sequences.get());
      note(ranks_[i], "detached sequences", metrics.detached_sequences.get());
      note(ranks_[i], "blocks in use", metrics.blocks_used.get());
      note(ranks_[i], "blocks reserved", metrics.blocks_reserved.get());
    }
  }
  return left;
}

}  // namespace winnow::simulation
