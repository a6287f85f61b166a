#include "tests/cmd/pty_process.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "common/base/check.h"

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{60};
constexpr int kPatienceMs = std::chrono::milliseconds(kPatience).count();

}  // namespace

PtyProcess::PtyProcess(const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>(WINNOW_BINARY)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const winsize size{.ws_row = 24, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
  pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
  WINNOW_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("TERM", "xterm", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    execv(argv[0], argv.data());
    _exit(127);
  }
}

PtyProcess::~PtyProcess() {
  if (pid_ >= 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(terminal_);
}

void PtyProcess::Type(std::string_view keys) {
  while (!keys.empty()) {
    // The terminal holds some kilobytes; the program may be writing, too.
    pollfd ready{terminal_, POLLIN | POLLOUT, 0};
    WINNOW_CHECK(poll(&ready, 1, kPatienceMs) > 0);
    // Of a program that has ended the next Shows tells.
    if ((ready.revents & (POLLIN | POLLHUP)) != 0 && !ReadSome()) return;
    if ((ready.revents & POLLOUT) == 0) continue;
    const ssize_t n = write(terminal_, keys.data(), std::min<size_t>(keys.size(), 256));
    WINNOW_CHECK(n > 0);
    keys.remove_prefix(n);
  }
}

bool PtyProcess::ReadSome() {
  pollfd ready{terminal_, POLLIN, 0};
  if (poll(&ready, 1, kPatienceMs) <= 0) return false;
  char buffer[4096];
  const ssize_t n = read(terminal_, buffer, sizeof buffer);  // EIO at the end
  if (n <= 0) return false;
  shown_.append(buffer, n);
  return true;
}

bool PtyProcess::Shows(std::string_view text) {
  // A line of progress may keep the terminal busy for ever.
  const Clock::time_point limit = Clock::now() + kPatience;
  size_t at;
  while ((at = shown_.find(text, seen_)) == std::string::npos) {
    if (Clock::now() > limit || !ReadSome()) return false;
  }
  seen_ = at + text.size();
  return true;
}

int PtyProcess::Wait() {
  while (ReadSome()) {
  }
  // A program that only waits for more keys would wait for ever.
  const Clock::time_point limit = Clock::now() + std::chrono::seconds(10);
  int status = 0;
  pid_t ended;
  while ((ended = waitpid(pid_, &status, WNOHANG)) == 0 && Clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (ended == 0) {
    kill(pid_, SIGKILL);
    ended = waitpid(pid_, &status, 0);
  }
  WINNOW_CHECK(ended == pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace winnow
