#include "cmd/up/own_server.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace winnow {
namespace {

constexpr size_t kKeptLogBytes = 8 << 10;

// The last line that is not empty.
std::string LastLine(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<OwnServer>> OwnServer::Start(const std::string& model_dir, bool (*is_interrupted)()) {
  WINNOW_ASSIGN_OR_RETURN(ChildProcess child,
                          SpawnChild({"/proc/self/exe", "up", "--model=" + model_dir, "--http=127.0.0.1:0",
                                      "--grpc=127.0.0.1:0", "--metrics=127.0.0.1:0"},
                                     /*config=*/""));
  std::unique_ptr<OwnServer> server(new OwnServer(std::move(child)));
  while (true) {
    if (is_interrupted()) return absl::CancelledError("interrupted while the server started");
    if (!server->ReadLog()) {
      return absl::UnavailableError(absl::StrCat("the server did not start: ", LastLine(server->log_)));
    }
    const size_t ready = server->log_.find("ready http=");
    const size_t begin = ready + 11, end = server->log_.find(' ', begin);
    if (ready == std::string::npos || end == std::string::npos) continue;
    server->http_ = server->log_.substr(begin, end - begin);
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
  if (log_.size() > kKeptLogBytes) log_.erase(0, log_.size() - kKeptLogBytes);
  return bytes > 0;
}

}  // namespace winnow
