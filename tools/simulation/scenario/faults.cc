#include "tools/simulation/scenario/faults.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace winnow::simulation {
namespace {

// Silence after which gRPC gives a connection up (common/rpc/channel.cc).
constexpr Nanos kKeepalive = 15 * kSecond;

class Planner {
 public:
  Planner(Cluster* cluster, Nanos from, Nanos to)
      : cluster_(*cluster), runtime_(cluster->runtime()), from_(from), to_(to) {}

  void Plan(Fault fault) {
    const Nanos at = from_ + Random(to_ - from_);
    switch (fault) {
      case Fault::kKillInference:
        return Kill(at, RankOf("inference"));
      case Fault::kKillCache:
        return Kill(at, RankOf("cache"));
      case Fault::kKillRouter:
        return Kill(at, AnyRouter());
      case Fault::kStopInference:
        return Stop(at, RankOf("inference"), Length());
      case Fault::kStopCache:
        return Stop(at, RankOf("cache"), Length());
      case Fault::kStopRouter:
        return Stop(at, AnyRouter(), Length());
      case Fault::kLateRouter: {
        const std::string router = AnyRouter();
        for (Nanos next = at; next < to_; next += 3500 * kMillisecond) Stop(next, router, 2300 * kMillisecond);
        return;
      }
      case Fault::kSlow:
        return Slow(at, AnyProcess());
      case Fault::kPartition:
        return Partition(at);
      case Fault::kReset:
        runtime_.At(at, [cluster = &cluster_, a = AnyProcess(), b = AnyProcess()] {
          cluster->runtime().Trace("network", absl::StrCat("connections between ", a, " and ", b, " break"));
          cluster->network().ResetConnections(a, b);
        });
        return;
      case Fault::kFrames:
        return Frames(at);
      case Fault::kClockJump:
        return ClockJump(at, AnyProcess());
      case Fault::kLatency:
        return Latency(at);
    }
  }

  void Starve(const std::string& name, double slowness) {
    runtime_.At(from_, [cluster = &cluster_, name, slowness, to = to_] {
      Process* const process = cluster->Find(name);
      if (process == nullptr) return;
      process->slowness = slowness;
      cluster->runtime().At(to, [process] { process->slowness = 1; });
    });
    for (Nanos at = from_ + Random(kSecond); at < to_;) {
      const Nanos length = runtime_.Chance(0.8)   ? Random(400 * kMillisecond)
                           : runtime_.Chance(0.8) ? Random(2 * kSecond)
                                                  : Random(5 * kSecond);
      Stop(at, name, length);
      at += length + Random(2 * kSecond);
    }
  }

 private:
  Nanos Random(Nanos limit) { return static_cast<Nanos>(runtime_.Random(static_cast<uint64_t>(limit))); }
  // Of a fault: mostly short, sometimes longer than any lease.
  Nanos Length() {
    return runtime_.Chance(0.4)   ? Random(300 * kMillisecond)
           : runtime_.Chance(0.7) ? Random(3 * kSecond)
                                  : Random(9 * kSecond);
  }
  Nanos End(Nanos at, Nanos length) const { return std::min(at + length, to_); }
  std::string RankOf(std::string_view role) {
    std::vector<std::string> ranks;
    for (const std::string& rank : cluster_.ranks()) {
      if (rank.starts_with(role)) ranks.push_back(rank);
    }
    return ranks[runtime_.Random(ranks.size())];
  }
  std::string AnyProcess() {
    const size_t ranks = cluster_.ranks().size();
    const uint64_t i = runtime_.Random(ranks + cluster_.routers().size());
    return i < ranks ? cluster_.ranks()[i] : cluster_.routers()[i - ranks];
  }
  std::string AnyRouter() { return cluster_.routers()[runtime_.Random(cluster_.routers().size())]; }

  void Kill(Nanos at, const std::string& name) {
    Cluster* const cluster = &cluster_;
    runtime_.At(at, [cluster, name] { cluster->Kill(name); });
    runtime_.At(End(at, 20 * kMillisecond + Length()), [cluster, name] {
      if (cluster->Find(name) == nullptr) cluster->Start(name);
    });
  }

  void Stop(Nanos at, const std::string& name, Nanos length) {
    Cluster* const cluster = &cluster_;
    runtime_.At(at, [cluster, name, length, end = End(at, length)] {
      Process* const process = cluster->Find(name);
      if (process == nullptr) return;
      cluster->runtime().Trace(name, absl::StrCat("is stopped for ", length / kMillisecond, " ms"));
      cluster->runtime().Stop(process);
      cluster->runtime().At(end, [cluster, name, process] {
        if (process->stopped) cluster->runtime().Trace(name, "goes on");
        cluster->runtime().Continue(process);
      });
    });
  }

  void Slow(Nanos at, const std::string& name) {
    Cluster* const cluster = &cluster_;
    const double slowness = 2.0 + static_cast<double>(runtime_.Random(40));
    runtime_.At(at, [cluster, name, slowness, end = End(at, Length())] {
      Process* const process = cluster->Find(name);
      if (process == nullptr) return;
      cluster->runtime().Trace(name, absl::StrCat("is ", slowness, " times slower"));
      process->slowness = slowness;
      cluster->runtime().At(end, [process] { process->slowness = 1; });
    });
  }

  void Partition(Nanos at) {
    const std::string a = AnyProcess(), b = AnyProcess();
    if (a == b) return;
    const bool both_ways = runtime_.Chance(0.7);
    const Nanos end = End(at, Length());
    runtime_.At(at, [cluster = &cluster_, a, b, both_ways, end] {
      cluster->runtime().Trace("network", absl::StrCat(a, both_ways ? " and " : " to ", b, " are apart for ",
                                                       (end - cluster->runtime().now()) / kMillisecond, " ms"));
      cluster->network().BlockLink(a, b, end);
      if (both_ways) cluster->network().BlockLink(b, a, end);
    });
    if (end - at > kKeepalive) {
      runtime_.At(at + kKeepalive, [cluster = &cluster_, a, b] { cluster->network().ResetConnections(a, b); });
    }
  }

  void Frames(Nanos at) {
    FrameFaults faults;
    const auto chance = [&] {
      return runtime_.Chance(0.4) ? 0.02 * static_cast<double>(runtime_.Random(100)) / 100 : 0;
    };
    faults.drop = chance();
    faults.repeat = chance();
    faults.reorder = chance();
    faults.corrupt = chance();
    faults.late = chance();
    FrameNetwork* const frames = &cluster_.frames();
    runtime_.At(at, [runtime = &runtime_, frames, faults] {
      runtime->Trace("network", "frames begin to be lost, repeated, reordered, corrupted or late");
      frames->faults = faults;
    });
    runtime_.At(End(at, Length()), [frames] { frames->faults = {}; });
    runtime_.At(to_, [frames] { frames->faults = {}; });
  }

  void ClockJump(Nanos at, const std::string& name) {
    const Nanos jump = Random(8 * kSecond) - 4 * kSecond;
    runtime_.At(at, [cluster = &cluster_, name, jump] {
      Process* const process = cluster->Find(name);
      if (process == nullptr) return;
      cluster->runtime().Trace(name, absl::StrCat("has its clock set by ", jump / kMillisecond, " ms"));
      process->clock_offset += jump;
    });
  }

  void Latency(Nanos at) {
    const Nanos extra = 1 * kMillisecond + Random(200 * kMillisecond);
    const double share = 0.01 * static_cast<double>(1 + runtime_.Random(30));
    Network* const network = &cluster_.network();
    runtime_.At(at, [network, extra, share] {
      network->runtime().Trace("network",
                               absl::StrCat("a share of messages takes up to ", extra / kMillisecond, " ms"));
      network->extra_latency = extra;
      network->extra_latency_chance = share;
    });
    runtime_.At(End(at, Length()), [network] { network->extra_latency = 0; });
    runtime_.At(to_, [network] { network->extra_latency = 0; });
  }

  Cluster& cluster_;
  Runtime& runtime_;
  const Nanos from_, to_;
};

}  // namespace

void PlanStarvation(Cluster* cluster, Nanos from, Nanos to) {
  Planner planner(cluster, from, to);
  const double slowness = 5.0 + static_cast<double>(cluster->runtime().Random(40));
  for (const auto* names : {&cluster->ranks(), &cluster->routers()}) {
    for (const std::string& name : *names) planner.Starve(name, slowness);
  }
}

std::array<uint32_t, kFaultNames.size()> PlanFaults(Cluster* cluster, Nanos from, Nanos to) {
  Runtime& runtime = cluster->runtime();
  Planner planner(cluster, from, to);
  std::array<uint32_t, kFaultNames.size()> counts{};
  // A few kinds in each seed, so that some seeds have many of one.
  std::vector<size_t> kinds;
  for (size_t kind = 0; kind < kFaultNames.size(); ++kind) {
    if (runtime.Chance(0.3)) kinds.push_back(kind);
  }
  if (kinds.empty()) return counts;
  const uint64_t faults = 1 + runtime.Random(8);
  for (uint64_t i = 0; i < faults; ++i) {
    const size_t kind = kinds[runtime.Random(kinds.size())];
    ++counts[kind];
    planner.Plan(static_cast<Fault>(kind));
  }
  return counts;
}

}  // namespace winnow::simulation
