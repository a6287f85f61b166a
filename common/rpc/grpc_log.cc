#include "common/rpc/grpc_log.h"

#include <grpc/support/log.h>

#include <string_view>

#include "common/base/logging.h"

namespace winnow {
namespace {

void Log(gpr_log_func_args* args) {
  const std::string_view message = args->message;
  if (message.starts_with("No match found for server name")) return;
  spdlog::log(args->severity == GPR_LOG_SEVERITY_ERROR ? spdlog::level::warn : spdlog::level::debug, "gRPC: {}",
              message);
}

}  // namespace

void LogForGrpc() {
  gpr_set_log_function(Log);
}

}  // namespace winnow
