#include "tests/e2e/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

struct Stat {
  char state = '?';
  pid_t parent = -1;
  uint64_t start_ticks = 0;
};

std::optional<Stat> ReadStat(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const size_t name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  Stat stat;
  fields >> stat.state >> stat.parent;
  std::string skipped;
  for (int field = 5; field < 22; ++field) fields >> skipped;
  fields >> stat.start_ticks;
  return stat;
}

int LeftMs(Clock::time_point until) {
  return static_cast<int>(std::max<int64_t>(0, std::chrono::ceil<milliseconds>(until - Clock::now()).count()));
}

}  // namespace

bool WaitUntil(milliseconds limit, const std::function<bool()>& done) {
  const Clock::time_point until = Clock::now() + limit;
  while (!done()) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(milliseconds(20));
  }
  return true;
}

Process::Process(const std::vector<std::string>& arguments, const Environment& environment) {
  int out[2];
  WINNOW_CHECK(pipe2(out, O_CLOEXEC) == 0);
  stdout_fd_ = out[0];
  log_fd_ = memfd_create("log", MFD_CLOEXEC);
  WINNOW_CHECK(log_fd_ >= 0);

  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text(*variable);
    const bool replaced = std::any_of(environment.begin(), environment.end(),
                                      [&](const auto& entry) { return text.starts_with(entry.first + "="); });
    if (!replaced) variables.push_back(text);
  }
  for (const auto& [key, value] : environment) variables.push_back(absl::StrCat(key, "=", value));
  const auto pointers = [](const std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
    result.push_back(nullptr);
    return result;
  };
  const std::vector<char*> argv = pointers(arguments), envp = pointers(variables);

  const pid_t parent = getpid();
  pid_ = fork();
  WINNOW_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(log_fd_, STDERR_FILENO);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  close(out[1]);
}

Process::~Process() {
  if (!exit_code_) {
    Signal(SIGKILL);
    Wait(milliseconds(10'000));
  }
  close(stdout_fd_);
  close(log_fd_);
}

void Process::Signal(int signal_number) const {
  if (!exit_code_) kill(pid_, signal_number);
}

std::optional<std::string> Process::ReadLine(milliseconds limit) {
  const Clock::time_point until = Clock::now() + limit;
  while (true) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    pollfd fd{stdout_fd_, POLLIN, 0};
    if (poll(&fd, 1, LeftMs(until)) <= 0) return std::nullopt;
    char buffer[4096];
    const ssize_t n = read(stdout_fd_, buffer, sizeof buffer);
    if (n <= 0) return std::nullopt;
    unread_.append(buffer, n);
  }
}

std::optional<int> Process::Wait(milliseconds limit) {
  WaitUntil(limit, [&] {
    int status = 0;
    if (!exit_code_ && waitpid(pid_, &status, WNOHANG) == pid_) {
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return exit_code_.has_value();
  });
  return exit_code_;
}

std::string Process::Log() const {
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = pread(log_fd_, buffer, sizeof buffer, static_cast<off_t>(text.size()))) > 0;) {
    text.append(buffer, n);
  }
  return text;
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<std::tuple<uint64_t, pid_t>> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = std::atoi(name.c_str());
    const std::optional<Stat> stat = ReadStat(pid);
    if (stat && stat->parent == parent && stat->state != 'Z') found.emplace_back(stat->start_ticks, pid);
  }
  std::sort(found.begin(), found.end());
  std::vector<pid_t> pids;
  for (const auto& [start, pid] : found) pids.push_back(pid);
  return pids;
}

bool IsAlive(pid_t pid) {
  const std::optional<Stat> stat = ReadStat(pid);
  return stat && stat->state != 'Z' && stat->state != 'X';
}

std::string SubcommandOf(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/cmdline");
  std::string program, subcommand;
  std::getline(in, program, '\0');
  std::getline(in, subcommand, '\0');
  return subcommand;
}

int CountFds(pid_t pid) {
  std::error_code error;
  const std::filesystem::directory_iterator fds("/proc/" + std::to_string(pid) + "/fd", error);
  return error ? -1 : static_cast<int>(std::distance(begin(fds), end(fds)));
}

}  // namespace winnow::e2e
