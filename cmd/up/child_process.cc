#include "cmd/up/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace winnow {
namespace {

absl::Status SystemError(const char* what) {
  return absl::InternalError(absl::StrCat("cannot start a child: ", what, ": ", strerror(errno)));
}

// A duplicate above the descriptors that the child is given, so that handing one out never overwrites another.
absl::StatusOr<UniqueFd> MoveUp(int fd) {
  UniqueFd low(fd);
  UniqueFd high(fcntl(fd, F_DUPFD_CLOEXEC, kConfigFd + 1));
  if (high.get() < 0) return SystemError("fcntl");
  return high;
}

struct Pipe {
  UniqueFd read, write;
};

absl::StatusOr<Pipe> NewPipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe");
  absl::StatusOr<UniqueFd> read = MoveUp(ends[0]);
  absl::StatusOr<UniqueFd> write = MoveUp(ends[1]);
  if (!read.ok()) return read.status();
  if (!write.ok()) return write.status();
  fcntl(read->get(), F_SETFL, O_NONBLOCK);
  return Pipe{*std::move(read), *std::move(write)};
}

absl::StatusOr<UniqueFd> MemoryFile(const std::string& text) {
  const int fd = memfd_create("winnow-config", MFD_CLOEXEC);
  if (fd < 0) return SystemError("memfd_create");
  WINNOW_ASSIGN_OR_RETURN(UniqueFd file, MoveUp(fd));
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) return SystemError("write");
  lseek(file.get(), 0, SEEK_SET);
  return file;
}

// Runs in the child between fork and exec; never returns.
[[noreturn]] void Become(pid_t parent, std::vector<char*> argv, int log, int report, int config) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent died before prctl
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  dup2(report, kReportFd);
  dup2(config, kConfigFd);
  execv(argv[0], argv.data());
  dprintf(STDERR_FILENO, "cannot run %s: %s\n", argv[0], strerror(errno));
  _exit(127);
}

}  // namespace

void UniqueFd::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::StatusOr<ChildProcess> SpawnChild(const std::vector<std::string>& arguments, const std::string& config) {
  WINNOW_ASSIGN_OR_RETURN(Pipe log, NewPipe());
  WINNOW_ASSIGN_OR_RETURN(Pipe report, NewPipe());
  WINNOW_ASSIGN_OR_RETURN(UniqueFd config_file, MemoryFile(config));
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return SystemError("fork");
  if (pid == 0) Become(parent, std::move(argv), log.write.get(), report.write.get(), config_file.get());
  return ChildProcess{pid, std::move(log.read), std::move(report.read)};
}

}  // namespace winnow
