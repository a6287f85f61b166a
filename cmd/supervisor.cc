#include "cmd/supervisor.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/check.h"

namespace winnow {
namespace {

constexpr std::chrono::milliseconds kTick{50};
constexpr size_t kMaxLineBytes = 64 << 10;

// Reads what a non-blocking descriptor has.
std::string ReadAll(int fd) {
  std::string bytes;
  char buffer[16 << 10];
  for (ssize_t n; fd >= 0 && (n = read(fd, buffer, sizeof buffer)) > 0;) bytes.append(buffer, n);
  return bytes;
}

void WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // nobody reads our log any more
    bytes.remove_prefix(n);
  }
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

std::string HowItEnded(int wait_status) {
  if (WIFEXITED(wait_status)) return absl::StrCat("ended with exit code ", WEXITSTATUS(wait_status));
  return absl::StrCat("was killed by signal ", WTERMSIG(wait_status), " (", strsignal(WTERMSIG(wait_status)), ")");
}

}  // namespace

Supervisor::Supervisor(Options options) : options_(options) {
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
  auto supervised = std::make_unique<Supervised>();
  supervised->child = std::move(child);
  supervised->backoff = options_.first_backoff;
  WINNOW_RETURN_IF_ERROR(Spawn(*supervised));
  children_.push_back(std::move(supervised));
  return absl::OkStatus();
}

absl::Status Supervisor::Spawn(Supervised& child) {
  WINNOW_ASSIGN_OR_RETURN(child.process, SpawnChild(child.child.arguments, child.child.config(child.addresses)));
  child.started = Clock::now();
  child.ready = child.drained = false;
  child.log_rest.clear();
  child.report_rest.clear();
  return absl::OkStatus();
}

void Supervisor::DrainLog(Supervised& child) {
  std::string out;
  SplitLines(child.log_rest, ReadAll(child.process.log.get()), [&](std::string_view line) {
    absl::StrAppend(&out, child.child.name, " | ", AbslSv(line), "\n");
    if (!line.empty()) child.last_words = std::string(line);
  });
  WriteAll(options_.log_fd, out);
}

void Supervisor::DrainReport(Supervised& child) {
  SplitLines(child.report_rest, ReadAll(child.process.report.get()), [&](std::string_view line) {
    if (line == "ready") {
      child.ready = child.ever_ready = true;
    } else if (line == "drained") {
      child.drained = true;
    } else if (const size_t equals = line.find('='); equals != std::string_view::npos) {
      child.addresses[std::string(line.substr(0, equals))] = std::string(line.substr(equals + 1));
    }
  });
}

bool Supervisor::Turn(Clock::time_point until) {
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
  bool stop = false;
  for (signalfd_siginfo info; read(signals_.get(), &info, sizeof info) == sizeof info;) {
    if (info.ssi_signo != SIGCHLD) stop = true;
  }
  return stop;
}

absl::Status Supervisor::HandleDeaths() {
  absl::Status result;
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
    result.Update(OnDeath(*child, wait_status));
  }
  return result;
}

absl::Status Supervisor::OnDeath(Supervised& child, int wait_status) {
  const std::string what = absl::StrCat(child.child.name, " ", HowItEnded(wait_status));
  const std::string words = child.last_words.empty() ? "" : absl::StrCat(": ", child.last_words);
  child.ready = false;
  if (!child.ever_ready) return absl::AbortedError(absl::StrCat(what, words));
  if (Clock::now() - child.started >= options_.long_life) {
    child.short_lives = 0;
    child.backoff = options_.first_backoff;
  }
  if (++child.short_lives > options_.max_short_lives) {
    return absl::AbortedError(
        absl::StrCat(what, " for the ", child.short_lives, "th time shortly after its start, giving up", words));
  }
  WriteAll(options_.log_fd, absl::StrCat("winnow up: ", what, "; restarting it in ", child.backoff.count(), " ms\n"));
  child.restart_at = Clock::now() + child.backoff;
  child.backoff = std::min(child.backoff * 2, options_.last_backoff);
  return absl::OkStatus();
}

absl::Status Supervisor::RestartDue() {
  for (const auto& child : children_) {
    if (child->process.pid < 0 && Clock::now() >= child->restart_at) WINNOW_RETURN_IF_ERROR(Spawn(*child));
  }
  return absl::OkStatus();
}

absl::Status Supervisor::RunUntil(const std::function<bool()>& done) {
  while (!done()) {
    if (Turn(Clock::now() + kTick)) return absl::CancelledError("stopped by a signal");
    WINNOW_RETURN_IF_ERROR(HandleDeaths());
    WINNOW_RETURN_IF_ERROR(RestartDue());
  }
  return absl::OkStatus();
}

bool Supervisor::Draining() const {
  return std::any_of(children_.begin(), children_.end(), [](const auto& child) {
    return child->child.drains_first && child->process.pid >= 0 && !child->drained;
  });
}

void Supervisor::StopAll() {
  const auto tell = [this](bool those_that_drain_first) {
    for (const auto& child : children_) {
      const bool wanted = child->child.drains_first == those_that_drain_first;
      if (wanted && child->process.pid >= 0) kill(child->process.pid, SIGTERM);
    }
  };
  tell(true);
  bool told_all = false;
  const Clock::time_point limit = Clock::now() + options_.grace;
  bool killed = false;
  while (true) {
    bool any = false;
    for (const auto& child : children_) {
      if (child->process.pid >= 0 && waitpid(child->process.pid, nullptr, WNOHANG) == child->process.pid) {
        DrainLog(*child);
        child->process = ChildProcess();
      }
      any |= child->process.pid >= 0;
    }
    if (!any) break;
    if (!told_all && !Draining()) {
      told_all = true;
      tell(false);
    }
    const bool again = Turn(Clock::now() + kTick);
    if (!killed && (again || Clock::now() >= limit)) {
      killed = true;
      for (const auto& child : children_) {
        if (child->process.pid < 0) continue;
        WriteAll(options_.log_fd, absl::StrCat("winnow up: killing ", child->child.name, ", which does not end\n"));
        kill(child->process.pid, SIGKILL);
      }
    }
  }
  children_.clear();
}

bool Supervisor::AllReady() const {
  return std::all_of(children_.begin(), children_.end(), [](const auto& child) { return child->ready; });
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
