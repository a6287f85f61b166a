// Faults that take a process's resources away.
#include <dirent.h>
#include <sys/resource.h>

#include <set>

#include "absl/strings/str_format.h"
#include "cmd/chaos/faults/fault.h"
#include "cmd/up/http_probe.h"

namespace winnow::chaos {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLimitLook{100};

// A soft limit of a process, for as long as the object lives.
class Limit {
 public:
  Limit(const Process& process, __rlimit_resource resource, rlim_t value) : process_(process), resource_(resource) {
    if (process.has_ended() || prlimit(process.pid(), resource, nullptr, &before_) != 0) return;
    is_set_ = Change(value);
  }
  ~Limit() {
    if (is_set_ && !process_.has_ended()) prlimit(process_.pid(), resource_, &before_, nullptr);
  }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

  // False when the process has ended meanwhile, or the limit may not be changed.
  bool Change(rlim_t value) {
    rlimit now = before_;
    now.rlim_cur = value;
    return !process_.has_ended() && prlimit(process_.pid(), resource_, &now, nullptr) == 0;
  }

 private:
  const Process& process_;
  const __rlimit_resource resource_;
  rlimit before_{};
  bool is_set_ = false;
};

rlim_t LimitNow(const Process& process, __rlimit_resource resource) {
  rlimit limit{};
  return prlimit(process.pid(), resource, nullptr, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// The number that the process's next descriptor would have.
rlim_t LowestFreeDescriptor(pid_t pid) {
  std::set<rlim_t> used;
  DIR* const directory = opendir(absl::StrCat("/proc/", pid, "/fd").c_str());
  if (directory == nullptr) return 0;
  while (const dirent* entry = readdir(directory)) {
    if (entry->d_name[0] != '.') used.insert(std::strtoul(entry->d_name, nullptr, 10));
  }
  closedir(directory);
  rlim_t lowest = 0;
  while (used.contains(lowest)) ++lowest;
  return lowest;
}

}  // namespace

Effect LimitMemory(const Strike& strike, const std::stop_token& stop) {
  const Process& process = strike.target->process;
  const absl::StatusOr<ProcessFigures> before = process.Figures();
  if (!before.ok()) return {.seen = false, .evidence = std::string(before.status().message())};
  const auto size = static_cast<rlim_t>(before->vm_bytes);
  std::optional<Limit> limit;
  if (!strike.pretend) limit.emplace(process, RLIMIT_AS, size);
  // The kernel refuses every mapping that would take a process beyond its limit, so that the two numbers say it all.
  const bool is_full = LimitNow(process, RLIMIT_AS) <= size;
  int64_t most = before->vm_bytes;
  const Clock::time_point until = Clock::now() + strike.lasts;
  while (Clock::now() < until && !process.has_ended() && SleepFor(kLimitLook, stop)) {
    const absl::StatusOr<ProcessFigures> now = process.Figures();
    if (now.ok()) most = std::max(most, now->vm_bytes);
  }
  const bool ended = process.has_ended();
  return {.seen = is_full,
          .evidence = absl::StrFormat(
              "%s; it had %.0f MiB mapped and had no more than %.0f MiB since%s",
              is_full ? "every mapping beyond its present size is refused" : "its memory is not limited",
              static_cast<double>(before->vm_bytes) / 1048576.0, static_cast<double>(most) / 1048576.0,
              ended ? "; it has ended by it" : "")};
}

Effect LimitDescriptors(const Strike& strike, const std::stop_token& stop) {
  const Process& process = strike.target->process;
  rlim_t lowest = LowestFreeDescriptor(process.pid());
  std::optional<Limit> limit;
  if (!strike.pretend) limit.emplace(process, RLIMIT_NOFILE, lowest);
  int asked = 0, unanswered = 0, lowered = 0;
  const Clock::time_point until = Clock::now() + strike.lasts;
  while (Clock::now() < until && !process.has_ended() && SleepFor(kLimitLook, stop)) {
    // What the process has closed meanwhile it would get again.
    const rlim_t now = LowestFreeDescriptor(process.pid());
    if (limit && now < lowest && limit->Change(now)) {
      lowest = now;
      ++lowered;
    }
    ++asked;
    unanswered += !HttpGet(strike.target->metrics.ToString(), "/live", milliseconds(400)).ok();
  }
  const bool ended = process.has_ended();
  return {
      .seen = unanswered > 0,
      .evidence = absl::StrFormat("descriptors from %d on are refused%s; %d of %d connections to it went unanswered%s",
                                  static_cast<int>(lowest),
                                  lowered > 0 ? absl::StrCat(", lowered ", lowered, " times as some were closed") : "",
                                  unanswered, asked, ended ? "; it has ended by it" : "")};
}

}  // namespace winnow::chaos
