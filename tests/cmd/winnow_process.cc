#include "tests/cmd/winnow_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "common/base/check.h"

namespace winnow {

WinnowProcess::WinnowProcess(const std::vector<std::string>& arguments, const Setting& setting) {
  int ends[2];
  WINNOW_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  errors_fd_ = memfd_create("stderr", MFD_CLOEXEC);
  const int input_fd = memfd_create("stdin", MFD_CLOEXEC);
  WINNOW_CHECK(write(input_fd, setting.input.data(), setting.input.size()) ==
               static_cast<ssize_t>(setting.input.size()));
  lseek(input_fd, 0, SEEK_SET);
  std::vector<char*> argv = {const_cast<char*>(WINNOW_BINARY)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const std::string& variable : setting.environment) putenv(const_cast<char*>(variable.c_str()));
    dup2(input_fd, STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    dup2(errors_fd_, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  close(input_fd);
  output_fd_ = ends[0];
}

WinnowProcess::~WinnowProcess() {
  if (pid_ >= 0) {
    kill(pid_, SIGKILL);
    Wait();
  }
  close(output_fd_);
  close(errors_fd_);
}

std::string WinnowProcess::ReadLine() {
  char buffer[4096];
  size_t end;
  while ((end = output_.find('\n', read_)) == std::string::npos) {
    const ssize_t n = read(output_fd_, buffer, sizeof buffer);
    if (n <= 0) return "";
    output_.append(buffer, n);
  }
  std::string line = output_.substr(read_, end - read_);
  read_ = end + 1;
  return line;
}

void WinnowProcess::Signal(int signal_number) {
  kill(pid_, signal_number);
}

int WinnowProcess::Wait() {
  char buffer[4096];
  for (ssize_t n; (n = read(output_fd_, buffer, sizeof buffer)) > 0;) output_.append(buffer, n);
  int status = 0;
  WINNOW_CHECK(waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string WinnowProcess::errors() {
  std::string text(lseek(errors_fd_, 0, SEEK_END), '\0');
  const ssize_t n = pread(errors_fd_, text.data(), text.size(), 0);
  text.resize(std::max<ssize_t>(n, 0));
  return text;
}

std::vector<ProcessInfo> ChildrenOf(pid_t parent) {
  std::vector<ProcessInfo> children;
  DIR* proc = opendir("/proc");
  while (const dirent* entry = readdir(proc)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    // "pid (name) state parent ..."; the name may hold anything.
    std::ifstream stat_file("/proc/" + std::string(entry->d_name) + "/stat");
    std::string stat{std::istreambuf_iterator<char>(stat_file), {}};
    const size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos) continue;
    char state = 0;
    pid_t its_parent = 0;
    std::istringstream(stat.substr(name_end + 1)) >> state >> its_parent;
    if (its_parent != parent || state == 'Z') continue;
    std::ifstream command_file("/proc/" + std::string(entry->d_name) + "/cmdline");
    std::string command{std::istreambuf_iterator<char>(command_file), {}};
    std::replace(command.begin(), command.end(), '\0', ' ');
    children.push_back({pid, std::move(command)});
  }
  closedir(proc);
  return children;
}

}  // namespace winnow
