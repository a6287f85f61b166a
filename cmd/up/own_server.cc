#include "cmd/up/own_server.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

namespace winnow {
namespace {

constexpr size_t kKeptLogBytes = 8 << 10;
constexpr std::string_view kReadyWithRouter = "ready http=", kReadyNode = "ready node=";

// The last line that is not empty.
std::string LastLine(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<OwnServer>> OwnServer::Start(const std::string& model_dir, bool (*is_interrupted)()) {
  return Start({"--model=" + model_dir}, /*log_file=*/"", is_interrupted);
}

absl::StatusOr<std::unique_ptr<OwnServer>> OwnServer::Start(const std::vector<std::string>& options,
                                                            const std::string& log_file, bool (*is_interrupted)()) {
  std::vector<std::string> arguments = {"/proc/self/exe", "up", "--http=127.0.0.1:0", "--grpc=127.0.0.1:0",
                                        "--metrics=127.0.0.1:0"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  return StartCommand(arguments, log_file, is_interrupted);
}

absl::StatusOr<std::unique_ptr<OwnServer>> OwnServer::StartCommand(const std::vector<std::string>& command,
                                                                   const std::string& log_file,
                                                                   bool (*is_interrupted)()) {
  WINNOW_ASSIGN_OR_RETURN(ChildProcess child, SpawnChild(command, /*config=*/""));
  std::unique_ptr<OwnServer> server(new OwnServer(std::move(child)));
  if (!log_file.empty()) server->log_file_.open(log_file);
  while (true) {
    if (is_interrupted()) return absl::CancelledError("interrupted while the server started");
    if (!server->ReadLog()) {
      return absl::UnavailableError(absl::StrCat("the server did not start: ", LastLine(server->log_)));
    }
    const size_t ready = std::min(server->log_.find(kReadyWithRouter), server->log_.find(kReadyNode));
    const size_t line_end = server->log_.find('\n', ready);
    if (ready == std::string::npos || line_end == std::string::npos) continue;
    server->ready_line_ = server->log_.substr(ready, line_end - ready);
    if (server->ready_line_.starts_with(kReadyWithRouter)) {
      const size_t begin = kReadyWithRouter.size();
      server->http_ = server->ready_line_.substr(begin, server->ready_line_.find(' ', begin) - begin);
    }
    server->reader_ = std::thread([&own = *server] {
      while (!own.done_ && own.ReadLog()) {
      }
    });
    return server;
  }
}

OwnServer::~OwnServer() {
  kill(child_.pid, SIGTERM);
  done_ = true;
  if (reader_.joinable()) reader_.join();
  while (ReadLog()) {
  }
  waitpid(child_.pid, nullptr, 0);
}

bool OwnServer::ReadLog() {
  pollfd entry{child_.log.get(), POLLIN, 0};
  if (poll(&entry, 1, 100) <= 0) return true;
  char buffer[4096];
  const ssize_t bytes = read(child_.log.get(), buffer, sizeof buffer);
  if (bytes < 0) return errno == EAGAIN || errno == EINTR;
  log_.append(buffer, bytes);
  if (log_file_.is_open()) log_file_.write(buffer, bytes).flush();
  if (log_.size() > kKeptLogBytes) log_.erase(0, log_.size() - kKeptLogBytes);
  return bytes > 0;
}

}  // namespace winnow
