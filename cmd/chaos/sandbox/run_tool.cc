#include "cmd/chaos/sandbox/run_tool.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_join.h"
#include "cmd/up/child_process.h"

namespace winnow::chaos {

absl::StatusOr<std::string> FindTool(const std::string& name) {
  for (const char* folder : {"/usr/sbin", "/sbin", "/usr/bin", "/bin"}) {
    std::string path = absl::StrCat(folder, "/", name);
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return absl::NotFoundError(absl::StrCat("the program ", name, " is not installed"));
}

absl::StatusOr<std::string> RunTool(const std::vector<std::string>& arguments) {
  WINNOW_ASSIGN_OR_RETURN(const std::string program, FindTool(arguments.front()));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::InternalError(absl::StrCat("pipe: ", strerror(errno)));
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDERR_FILENO);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  write_end.Reset();
  if (error != 0) return absl::InternalError(absl::StrCat("cannot run ", program, ": ", strerror(error)));
  std::string text;
  char buffer[4096];
  for (ssize_t bytes; (bytes = read(read_end.get(), buffer, sizeof buffer)) > 0;) text.append(buffer, bytes);
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return absl::FailedPreconditionError(absl::StrCat("`", absl::StrJoin(arguments, " "), "` failed: ", text));
}

}  // namespace winnow::chaos
