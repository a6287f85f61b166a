// Faults that keep processes from running.
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>

#include "absl/strings/str_format.h"
#include "cmd/chaos/faults/fault.h"

namespace winnow::chaos {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPauseLook{50};
constexpr int kLoopsPerCore = 4;
// The loops must have run, whatever else does, and the cluster's threads must have been kept from running for half of
// the time in which they could.
constexpr double kLeastOfLoops = 0.01;
constexpr double kLeastLost = 0.5;

double ThreadCpu() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// Time that threads have had a core, and that they have waited for one.
struct CoreTime {
  double had_s = 0, waited_s = 0;
};

// By rank, of the processes that still run.
std::map<std::string, CoreTime> CoreTimes(const Members& members) {
  std::map<std::string, CoreTime> times;
  for (const auto& [rank, member] : members) {
    const absl::StatusOr<ProcessFigures> figures = member.process.Figures();
    if (figures.ok()) times[rank] = {.had_s = figures->cpu_s, .waited_s = figures->run_delay_s};
  }
  return times;
}

// From one look to another, of the processes that both have seen: another fault may have killed one in between.
CoreTime Between(const std::map<std::string, CoreTime>& before, const std::map<std::string, CoreTime>& after) {
  CoreTime time;
  for (const auto& [rank, end] : after) {
    const auto begin = before.find(rank);
    if (begin == before.end()) continue;
    time.had_s += end.had_s - begin->second.had_s;
    time.waited_s += end.waited_s - begin->second.waited_s;
  }
  return time;
}

}  // namespace

Effect Suspend(const Strike& strike, const std::stop_token& stop) {
  const Process& process = strike.target->process;
  if (!strike.pretend && !process.Signal(SIGSTOP).ok()) return {.seen = false, .evidence = "the process has ended"};
  const Clock::time_point begin = Clock::now();
  SleepFor(kPauseLook, stop);
  const absl::StatusOr<ProcessFigures> first = process.Figures();
  int looks = 0, stopped = 0;
  double last_cpu_s = first.ok() ? first->cpu_s : 0;
  const auto look = [&] {
    const absl::StatusOr<ProcessFigures> figures = process.Figures();
    ++looks;
    if (!figures.ok()) return;
    stopped += figures->state == 'T';
    last_cpu_s = figures->cpu_s;
  };
  do {
    look();
  } while (Clock::now() - begin + kPauseLook < strike.lasts && SleepFor(kPauseLook, stop));
  if (!strike.pretend) {
    const absl::Status resumed = process.Signal(SIGCONT);
    if (!resumed.ok()) return {.seen = false, .evidence = std::string(resumed.message())};
  }
  const double cpu_s = first.ok() ? last_cpu_s - first->cpu_s : 0;
  return {.seen = stopped > 0 && stopped == looks,
          .evidence = absl::StrFormat("state T at %d of %d looks in %s, in which it had %.2f s of a core", stopped,
                                      looks, TimeText(Clock::now() - begin), cpu_s)};
}

Effect Starve(const Strike& strike, const Cluster& cluster, const std::stop_token& stop) {
  const Members members = cluster.Find();
  const std::map<std::string, CoreTime> before = CoreTimes(members);
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const unsigned loops = strike.pretend ? 0 : cores * kLoopsPerCore;
  const Clock::time_point begin = Clock::now();
  std::atomic<bool> over{false};
  std::vector<double> cpu_s(loops);
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < loops; ++i) {
      threads.emplace_back([&over, &used = cpu_s[i]] {
        while (!over.load(std::memory_order_relaxed)) {
        }
        used = ThreadCpu();
      });
    }
    SleepFor(strike.lasts, stop);
    over = true;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  double used_s = 0;
  for (const double each : cpu_s) used_s += each;
  const double share = used_s / (seconds * cores);
  const CoreTime time = Between(before, CoreTimes(members));
  const double lost = time.waited_s > 0 ? time.waited_s / (time.waited_s + time.had_s) : 0;
  return {
      .seen = share >= kLeastOfLoops && lost >= kLeastLost,
      .evidence = absl::StrFormat("%u busy loops had %.0f %% of %u cores for %.1f s; the cluster's threads had %.1f "
                                  "s of a core and waited %.1f s for one: %.0f %% lost",
                                  loops, 100 * share, cores, seconds, time.had_s, time.waited_s, 100 * lost)};
}

}  // namespace winnow::chaos
