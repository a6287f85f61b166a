#include "tools/simulation/scenario/seed_run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/simulation/cluster/client.h"
#include "tools/simulation/scenario/fence_watch.h"

namespace winnow::simulation {
namespace {

constexpr Nanos kJoinLimit = 20 * kSecond;
// Faults end so long after the first request; a lack of CPU later.
constexpr Nanos kFaultTime = 9 * kSecond, kStarvedTime = 30 * kSecond;
// How long after the last fault everything must be answered, every rank and router be back, and everything be given
// back.
constexpr Nanos kAnswerLimit = 150 * kSecond;
constexpr Nanos kCompleteLimit = 30 * kSecond;
constexpr Nanos kReturnLimit = 60 * kSecond;
// Far beyond all of these: no request may be lost to it.
constexpr std::chrono::seconds kTimeout{600};

ClusterShape DrawShape(std::mt19937_64& random) {
  ClusterShape shape;
  shape.inference.resize(2 + random() % 2);
  shape.caches.resize(1 + random() % 3);
  const bool hasty = random() % 2 == 0, slow = random() % 3 == 0, few_slots = random() % 6 == 0,
             little_memory = random() % 6 == 0, split = random() % 5 == 0;
  for (InferenceShape& inference : shape.inference) {
    if (hasty) inference.wait_timeout = std::chrono::milliseconds(500);
    if (few_slots) inference.slot_pages = 40;
    if (random() % 6 == 0) inference.max_running = 3;
    inference.step = static_cast<Nanos>(1 + random() % (slow ? 120 : 20)) * kMillisecond;
  }
  if (split) {
    shape.inference[0].phases = v1::PHASES_PREFILL;
    shape.inference[1].phases = v1::PHASES_DECODE;
  }
  for (CacheShape& cache : shape.caches) {
    if (little_memory) cache.memory_bytes = size_t{600} << 10;
  }
  if (shape.caches.size() > 1 && random() % 5 == 0)
    shape.shards = {.least = 1 + static_cast<uint32_t>(random() % 2), .most = 2};
  if (random() % 4 == 0) shape.num_routers = 2;
  if (shape.caches.size() > 1 && shape.shards.most == 1 && random() % 3 == 0) shape.replicas = 2;
  return shape;
}

// Runs until `holds`, asked every 50 ms.
bool RunUntilHolds(Runtime& runtime, Nanos limit, const std::function<bool()>& holds) {
  const Nanos end = runtime.now() + limit;
  while (!holds()) {
    if (runtime.now() >= end) return false;
    runtime.RunUntil(runtime.now() + 50 * kMillisecond);
  }
  return true;
}

// Of the clients of a seed: some cancel, some can resume, and of these some leave in the middle.
struct Manners {
  bool cancel, resume, leave;

  Behaviour Draw(std::mt19937_64& random) const {
    Behaviour behaviour;
    if (cancel && random() % 3 == 0) behaviour.cancel_after = static_cast<uint32_t>(random() % 20);
    behaviour.is_resumable = resume && random() % 4 != 0;
    if (behaviour.is_resumable && leave && random() % 2 == 0) {
      behaviour.leave_after = static_cast<uint32_t>(random() % 30);
      behaviour.comes_back = random() % 6 != 0;
    }
    return behaviour;
  }
};

}  // namespace

SeedResult RunAlone(Answers* answers) {
  // Never destroyed: its processes are in the middle of something.
  Cluster& cluster = *new Cluster(0, {}, /*tracing=*/false);
  Clients& clients = *new Clients(&cluster, nullptr);
  SeedResult result;
  if (!RunUntilHolds(cluster.runtime(), kJoinLimit, [&] { return cluster.IsComplete(); })) {
    result.violation = "the undisturbed cluster does not come up";
    return result;
  }
  for (size_t request = 0; request < AllRequests().size(); ++request) {
    const size_t first = clients.Ids().size();
    clients.Send(request, kTimeout);
    const bool answered = RunUntilHolds(cluster.runtime(), kAnswerLimit,
                                        [&] { return clients.Ids().size() > first && clients.num_open() == 0; });
    if (!answered) result.violation = absl::StrCat("request ", request, " is not answered by an undisturbed cluster");
    if (!clients.violations().empty()) result.violation = clients.violations().front();
    if (!result.violation.empty()) return result;
    const auto ids = clients.Ids();
    answers->emplace_back(ids.begin() + static_cast<ptrdiff_t>(first), ids.end());
    if (AllRequests()[request].selection.predictor != Predictor::kDense) continue;
    for (uint32_t sample = 0; sample < AllRequests()[request].n; ++sample) {
      if (answers->back()[sample] == DenseAnswer(AllRequests()[request], sample)) continue;
      result.violation = absl::StrCat("request ", request, " sample ", sample, " is not what the formulas say");
      return result;
    }
  }
  return result;
}

SeedResult RunSeed(uint64_t seed, Scenario scenario, const Answers& expected, bool tracing) {
  std::mt19937_64 random(seed);
  const ClusterShape shape = DrawShape(random);
  Cluster& cluster = *new Cluster(seed, shape, tracing);
  Runtime& runtime = cluster.runtime();
  Clients& clients = *new Clients(&cluster, &expected);
  SeedResult result;
  const auto fail = [&](const std::string& what) {
    if (result.violation.empty()) result.violation = what;
    runtime.Trace("check", absl::StrCat("VIOLATION ", what));
  };

  if (!RunUntilHolds(runtime, kJoinLimit, [&] { return cluster.IsComplete(); })) fail("the cluster does not come up");
  const bool starved = scenario == Scenario::kStarved;
  const Nanos start = runtime.now(), heal = start + (starved ? kStarvedTime : kFaultTime);
  const uint64_t num_requests = (starved ? 24 : 2) + random() % 14;
  const Nanos load_time = static_cast<Nanos>(1 + random() % 7) * kSecond;
  const Manners manners{
      .cancel = random() % 3 == 0, .resume = shape.num_routers > 1 || random() % 3 == 0, .leave = random() % 2 == 0};
  for (uint64_t i = 0; i < num_requests; ++i) {
    const size_t request = random() % AllRequests().size();
    const Behaviour behaviour = manners.Draw(random);
    runtime.At(start + static_cast<Nanos>(random() % static_cast<uint64_t>(load_time)),
               [&clients, request, behaviour] { clients.Send(request, kTimeout, behaviour); });
  }
  if (starved) {
    PlanStarvation(&cluster, start + 50 * kMillisecond, heal);
  } else {
    result.counts.faults = PlanFaults(&cluster, start + 50 * kMillisecond, heal);
  }
  runtime.RunUntil(heal + kMillisecond);
  runtime.Trace("check", "no fault from here on");

  if (!RunUntilHolds(runtime, kAnswerLimit, [&] { return clients.num_open() == 0; })) {
    fail(absl::StrCat(clients.num_open(), " samples are not answered ", kAnswerLimit / kSecond,
                      " s after the last fault"));
  }
  if (!RunUntilHolds(runtime, kCompleteLimit, [&] { return cluster.IsComplete(); })) {
    fail(absl::StrCat("a router does not have every rank ", kCompleteLimit / kSecond, " s after the last answer"));
  }
  // The cluster serves as it did before.
  clients.Send(seed % AllRequests().size(), kTimeout);
  runtime.RunUntil(runtime.now() + kSecond);
  if (!RunUntilHolds(runtime, kAnswerLimit, [&] { return clients.num_open() == 0; })) {
    fail("a request after all faults is not answered");
  }
  if (!RunUntilHolds(runtime, kReturnLimit, [&] { return cluster.Remainder().empty(); })) {
    fail(absl::StrCat("not given back ", kReturnLimit / kSecond, " s after the last answer: ", cluster.Remainder()));
  }
  if (!clients.violations().empty()) result.violation = clients.violations().front();
  if (!FenceViolation().empty()) result.violation = FenceViolation();

  SeedCounts& counts = result.counts;
  counts.digest = runtime.digest();
  counts.events = runtime.num_events();
  counts.samples = clients.num_ended;
  counts.cancelled = clients.num_cancelled;
  counts.tokens = clients.num_tokens;
  counts.not_identical = clients.num_not_identical;
  counts.lost_with_router = clients.num_lost_with_router;
  counts.routers = cluster.CountsOfRouters();
  for (const std::string& rank : cluster.ranks()) {
    if (const CacheProcess* cache = cluster.cache(rank))
      counts.stale_epochs += cache->metrics().stale_epoch_rejected.get();
  }
  counts.virtual_ms = static_cast<uint64_t>((runtime.now() - 1000 * kSecond) / kMillisecond);
  return result;
}

}  // namespace winnow::simulation
