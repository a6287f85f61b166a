#include "cmd/up/supervisor.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <random>

#include "common/base/check.h"

namespace winnow {
namespace {

constexpr std::chrono::milliseconds kTick{50};
constexpr size_t kMaxLineBytes = 64 << 10;
constexpr size_t kLastLines = 12;

// Reads what a non-blocking descriptor has.
std::string ReadAll(int fd) {
  std::string bytes;
  char buffer[16 << 10];
  for (ssize_t n; fd >= 0 && (n = read(fd, buffer, sizeof buffer)) > 0;) bytes.append(buffer, n);
  return bytes;
}

// Calls `line` for each complete line of rest + bytes and keeps the remainder in `rest`.
template <class F>
void SplitLines(std::string& rest, const std::string& bytes, F line) {
  rest += bytes;
  size_t begin = 0;
  for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
    line(std::string_view(rest).substr(begin, end - begin));
  }
  rest.erase(0, begin);
  if (rest.size() > kMaxLineBytes) {
    line(std::string_view(rest));
    rest.clear();
  }
}

// That the program itself said that it cannot run as it was started: another run would say the same.
bool NoRestartMends(int wait_status) {
  return WIFEXITED(wait_status) && (WEXITSTATUS(wait_status) == 2 || WEXITSTATUS(wait_status) == 127);
}

std::string HowItEnded(int wait_status) {
  if (WIFEXITED(wait_status)) return absl::StrCat("ended with exit code ", WEXITSTATUS(wait_status));
  return absl::StrCat("was killed by signal ", WTERMSIG(wait_status), " (", strsignal(WTERMSIG(wait_status)), ")");
}

}  // namespace

Supervisor::Supervisor(Options options) : options_(options), log_(options.log_fd) {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, signal);
  WINNOW_CHECK(sigprocmask(SIG_BLOCK, &set, nullptr) == 0);
  signal(SIGPIPE, SIG_IGN);
  signals_ = UniqueFd(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  WINNOW_CHECK(signals_.get() >= 0);
}

Supervisor::~Supervisor() {
  StopAll();
}

absl::Status Supervisor::Start(Child child) {
  auto supervised = std::make_unique<Supervised>(
      std::move(child), RestartDelays(options_.first_backoff, options_.last_backoff, std::random_device()()));
  WINNOW_RETURN_IF_ERROR(Spawn(*supervised));
  children_.push_back(std::move(supervised));
  return absl::OkStatus();
}

absl::Status Supervisor::Spawn(Supervised& child) {
  WINNOW_ASSIGN_OR_RETURN(child.process, SpawnChild(child.child.arguments, child.child.config(child.addresses)));
  child.ready = child.drained = false;
  child.log_rest.clear();
  child.report_rest.clear();
  child.last_lines.clear();
  return absl::OkStatus();
}

void Supervisor::WriteLog(std::string_view lines) {
  options_.write_log ? options_.write_log(lines) : log_.Write(lines);
}

void Supervisor::Say(std::string_view text) {
  WriteLog(absl::StrCat("winnow up: ", AbslSv(text), "\n"));
}

void Supervisor::DrainLog(Supervised& child) {
  std::string out;
  SplitLines(child.log_rest, ReadAll(child.process.log.get()), [&](std::string_view line) {
    absl::StrAppend(&out, child.child.name, " | ", AbslSv(line), "\n");
    if (line.empty()) return;
    child.last_lines.emplace_back(line);
    if (child.last_lines.size() > kLastLines) child.last_lines.pop_front();
  });
  if (!out.empty()) WriteLog(out);
}

void Supervisor::DrainReport(Supervised& child) {
  SplitLines(child.report_rest, ReadAll(child.process.report.get()), [&](std::string_view line) {
    if (line == "ready") {
      if (!child.ready) child.ready_since = Clock::now();
      if (!child.ready && child.restarts > 0) {
        Say(absl::StrCat(child.child.name, " is ready again after restart ", child.restarts));
      }
      child.ready = child.ever_ready = true;
    } else if (line == "drained") {
      child.drained = true;
    } else if (const size_t equals = line.find('='); equals != std::string_view::npos) {
      child.addresses[std::string(line.substr(0, equals))] = std::string(line.substr(equals + 1));
    }
  });
}

int Supervisor::Turn(Clock::time_point until) {
  std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0}};
  for (const auto& child : children_) {
    // A pipe that has ended would be readable for ever: SIGCHLD tells of the end.
    fds.push_back({child->process.log.get(), POLLIN, 0});
    fds.push_back({child->process.report.get(), POLLIN, 0});
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(left.count(), 0)));
  for (size_t i = 0; i < children_.size(); ++i) {
    Supervised& child = *children_[i];
    if (fds[1 + 2 * i].revents != 0) {
      DrainLog(child);
      if ((fds[1 + 2 * i].revents & POLLIN) == 0) child.process.log.Reset();
    }
    if (fds[2 + 2 * i].revents != 0) {
      DrainReport(child);
      if ((fds[2 + 2 * i].revents & POLLIN) == 0) child.process.report.Reset();
    }
  }
  int stops = 0;
  for (signalfd_siginfo info; read(signals_.get(), &info, sizeof info) == sizeof info;) {
    if (info.ssi_signo != SIGCHLD) ++stops;
  }
  return stops;
}

std::vector<Supervisor::Death> Supervisor::Reap() {
  std::vector<Death> deaths;
  for (const auto& child : children_) {
    int wait_status = 0;
    if (child->process.pid < 0 || waitpid(child->process.pid, &wait_status, WNOHANG) != child->process.pid) continue;
    DrainLog(*child);
    if (!child->log_rest.empty()) {
      child->log_rest += '\n';  // a last line that it did not end itself
      DrainLog(*child);
    }
    DrainReport(*child);
    child->process = ChildProcess();
    const std::string words = child->last_lines.empty() ? "" : absl::StrCat(": ", child->last_lines.back());
    deaths.push_back({child.get(), wait_status, absl::StrCat(child->child.name, " ", HowItEnded(wait_status), words)});
    if (child->ready && Clock::now() - child->ready_since >= options_.long_life) {
      child->short_lives = child->restarts = 0;
      child->delays.Reset();
    }
    child->ready = false;
  }
  return deaths;
}

absl::Status Supervisor::FailedBy(const Death& death, std::string text) {
  const Supervised& child = *death.child;
  failure_ = {.name = child.child.name,
              .last_lines = {child.last_lines.begin(), child.last_lines.end()},
              .signal_number = WIFSIGNALED(death.wait_status) ? WTERMSIG(death.wait_status) : 0};
  return absl::AbortedError(text);
}

absl::Status Supervisor::CheckDeathWhileComingUp(const Death& death) {
  Supervised& child = *death.child;
  if (!child.ever_ready) return FailedBy(death, death.text);
  if (++child.short_lives <= options_.max_short_lives) return absl::OkStatus();
  return FailedBy(death, absl::StrCat("giving up on ", child.child.name, ", which has died ", child.short_lives,
                                      " times while the cluster came up; now ", death.text));
}

void Supervisor::ScheduleRestart(Supervised& child, std::string_view why) {
  const std::chrono::milliseconds delay = child.delays.Next();
  child.restart_at = Clock::now() + delay;
  Say(absl::StrCat(AbslSv(why), "; restart ", ++child.restarts, " in ", delay.count(), " ms"));
}

void Supervisor::RestartDue() {
  for (const auto& child : children_) {
    if (child->process.pid >= 0 || Clock::now() < child->restart_at) continue;
    // The machine may have processes or descriptors again later.
    if (const absl::Status status = Spawn(*child); !status.ok()) {
      ScheduleRestart(*child, absl::StrCat(child->child.name, ": ", std::string(status.message())));
    }
  }
}

absl::Status Supervisor::RunUntil(const std::function<bool()>& done) {
  while (!done()) {
    if (Turn(Clock::now() + kTick) > 0) return absl::CancelledError("stopped by a signal");
    for (const Death& death : Reap()) {
      WINNOW_RETURN_IF_ERROR(CheckDeathWhileComingUp(death));
      ScheduleRestart(*death.child, death.text);
    }
    RestartDue();
  }
  return absl::OkStatus();
}

absl::Status Supervisor::KeepUp(const std::function<bool()>& serves) {
  while (Turn(Clock::now() + kTick) == 0) {
    for (const Death& death : Reap()) {
      if (NoRestartMends(death.wait_status) && !serves()) {
        return FailedBy(death, absl::StrCat("nothing is served, and no restart mends this: ", death.text));
      }
      ScheduleRestart(*death.child, death.text);
    }
    RestartDue();
  }
  return absl::CancelledError("stopped by a signal");
}

bool Supervisor::Draining() const {
  return std::any_of(children_.begin(), children_.end(), [](const auto& child) {
    return child->child.drains_first && child->process.pid >= 0 && !child->drained;
  });
}

void Supervisor::TellToEnd(const std::function<bool(const Supervised&)>& which, int signal) {
  for (const auto& child : children_) {
    if (child->process.pid >= 0 && which(*child)) kill(child->process.pid, signal);
  }
}

void Supervisor::StopAll() {
  const auto everyone = [](const Supervised&) { return true; };
  const auto drains_first = [](const Supervised& child) { return child.child.drains_first; };
  TellToEnd(drains_first, SIGTERM);
  bool told_all = false;
  Clock::time_point limit = Clock::now() + options_.grace;
  bool killed = false;
  for (int signals = 0;;) {
    Reap();
    const bool any =
        std::any_of(children_.begin(), children_.end(), [](const auto& child) { return child->process.pid >= 0; });
    if (!any) break;
    if (!told_all && !Draining()) {
      told_all = true;
      TellToEnd(std::not_fn(drains_first), SIGTERM);
    }
    const int more = Turn(Clock::now() + kTick);
    if (more > 0 && signals == 0) {
      Say("a second signal: what is under way is cut short");
      TellToEnd([&](const Supervised& child) { return told_all || drains_first(child); }, SIGTERM);
      limit = std::min(limit, Clock::now() + options_.hurried_grace);
    }
    signals += more;
    if (killed || (Clock::now() < limit && signals < 2)) continue;
    killed = true;
    for (const auto& child : children_) {
      if (child->process.pid >= 0) Say(absl::StrCat("killing ", child->child.name, ", which does not end"));
    }
    TellToEnd(everyone, SIGKILL);
  }
  children_.clear();
}

bool Supervisor::AllReady() const {
  return std::all_of(children_.begin(), children_.end(), [](const auto& child) { return child->ready; });
}

std::vector<std::string> Supervisor::NotReady() const {
  std::vector<std::string> names;
  for (const auto& child : children_) {
    if (!child->ready) names.push_back(child->child.name);
  }
  return names;
}

Supervisor::Supervised* Supervisor::Find(std::string_view name) const {
  for (const auto& child : children_) {
    if (child->child.name == name) return child.get();
  }
  WINNOW_CHECK(false && "no such child");
  return nullptr;
}

const Supervisor::Addresses& Supervisor::addresses(std::string_view name) const {
  return Find(name)->addresses;
}
pid_t Supervisor::pid(std::string_view name) const {
  return Find(name)->process.pid;
}

}  // namespace winnow
