#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/str_format.h"
#include "cmd/chaos/modes/closed_loop.h"
#include "cmd/chaos/modes/modes.h"
#include "tools/load/summary.h"

namespace winnow::chaos {
namespace {

using std::chrono::milliseconds;

constexpr int kMeasuredPart = 4;  // of the time of the overload, to measure what the cluster can do
constexpr double kMostTimes = 2;  // what the 99th percentile may grow by
constexpr size_t kMostAtOnce = 4096;

double Seconds(const Answer& answer) {
  return std::chrono::duration<double>(answer.ended - answer.sent).count();
}

struct Capacity {
  double requests_per_s = 0;
  Distribution latency_s;
};

Capacity MeasureCapacity(const Session& session, const OverloadPlan& plan, Tally& tally) {
  const Clock::time_point begin = Clock::now();
  std::vector<double> latencies;
  RunClosedLoop(
      session, plan.clients, [&] { return Clock::now() < begin + plan.lasts / kMeasuredPart; },
      [&](size_t request, const Answer& answer) {
        tally.Add(session, request, answer);
        if (answer.done) latencies.push_back(Seconds(answer));
      });
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return {static_cast<double>(latencies.size()) / seconds, DistributionOf(latencies)};
}

// What becomes of requests that come faster than they are answered.
struct Flood {
  size_t sent = 0, refused = 0, without_hint = 0, came_again = 0, taken_then = 0;
  std::vector<double> latencies_s;  // of those that were taken
};

Flood Send(const Session& session, const OverloadPlan& plan, double per_s, Tally& tally) {
  Flood flood;
  std::mutex mutex;
  std::atomic<size_t> under_way{0};
  std::mt19937_64 random(session.seed);
  std::exponential_distribution<double> gap_s(per_s);
  StreamOptions stream = session.stream;
  stream.again = false;
  std::vector<std::jthread> threads;
  const Clock::time_point until = Clock::now() + plan.lasts;
  while (Clock::now() < until && SleepFor(milliseconds(static_cast<int64_t>(1e3 * gap_s(random))), session.stop)) {
    if (under_way >= kMostAtOnce) continue;
    const size_t number = flood.sent++;
    ++under_way;
    threads.emplace_back([&, number] {
      const size_t request = number % session.requests.size();
      Answer answer = ReadAnswer(session.requests[request], stream, number);
      const int refused = answer.refused, hint_s = answer.retry_after_s;
      const bool again = refused > 0 && hint_s > 0 && SleepFor(std::chrono::seconds(hint_s), session.stop);
      if (again) answer = ReadAnswer(session.requests[request], stream, number);
      const std::scoped_lock lock(mutex);
      --under_way;
      flood.refused += static_cast<size_t>(refused);
      flood.without_hint += refused > 0 && hint_s == 0;
      flood.came_again += again;
      flood.taken_then += again && answer.refused == 0;
      if (answer.refused > 0 || session.stop.stop_requested()) return;
      tally.Add(session, request, answer);
      if (answer.done) flood.latencies_s.push_back(Seconds(answer));
    });
  }
  threads.clear();
  return flood;
}

}  // namespace

Findings RunOverload(const Session& session, const OverloadPlan& plan) {
  Findings findings;
  Tally tally;
  const Members before = session.cluster->Find();
  const Capacity capacity = MeasureCapacity(session, plan, tally);
  session.say(absl::StrFormat("%d clients: %.2f requests/s, latency p50 %.2f s, p99 %.2f s\n", plan.clients,
                              capacity.requests_per_s, capacity.latency_s.p50, capacity.latency_s.p99));
  if (capacity.latency_s.count == 0) {
    findings.failures.push_back("no request was answered while the capacity was measured");
    return findings;
  }
  const double factor = session.control == Control::kNoFault ? 0.1 : plan.factor;
  const Flood flood = Send(session, plan, factor * capacity.requests_per_s, tally);
  const Distribution latency_s = DistributionOf(flood.latencies_s);
  session.say(absl::StrFormat(
      "%.1f times as many for %s: %d sent, %d refused (%d without a time to come again; of %d that came again %d were "
      "taken)\n  latency of those taken p50 %.2f s, p99 %.2f s: %.2f times that of before\n",
      factor, TimeText(plan.lasts), flood.sent, flood.refused, flood.without_hint, flood.came_again, flood.taken_then,
      latency_s.p50, latency_s.p99, latency_s.p99 / capacity.latency_s.p99));
  session.say("  answers: " + tally.Text() + "\n");
  tally.AddFailures(findings.failures);
  if (flood.refused == 0) findings.failures.push_back("no request was refused: the cluster was not overloaded");
  if (flood.without_hint > 0) findings.failures.push_back("refusals do not say when to come again");
  if (latency_s.p99 > kMostTimes * capacity.latency_s.p99) {
    findings.failures.push_back(absl::StrFormat("p99 of the requests taken is %.2f times that of before",
                                                latency_s.p99 / capacity.latency_s.p99));
  }
  session.cluster->AwaitWhole(kWholeLimit, session.stop);  // who is short of CPU answers late
  if (const std::string ended = EndedSince(before, session.cluster->Find()); !ended.empty()) {
    findings.failures.push_back(ended);
  }
  CheckReturn(session, findings.failures);
  findings.json = {{"capacity_requests_per_s", capacity.requests_per_s},
                   {"baseline_p50_s", capacity.latency_s.p50},
                   {"baseline_p99_s", capacity.latency_s.p99},
                   {"sent", flood.sent},
                   {"refused", flood.refused},
                   {"refused_without_hint", flood.without_hint},
                   {"came_again", flood.came_again},
                   {"taken_then", flood.taken_then},
                   {"p50_s", latency_s.p50},
                   {"p99_s", latency_s.p99},
                   {"same", tally.same},
                   {"other_tokens", tally.wrong},
                   {"lost", tally.lost}};
  return findings;
}

}  // namespace winnow::chaos
