#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cmd/client/client_security.h"
#include "common/base/status.h"
#include "common/config/fields.h"

namespace winnow {

// Ports of a server that was given none.
inline constexpr uint16_t kHttpPort = 8000;
inline constexpr uint16_t kGrpcPort = 8001;
inline constexpr uint16_t kMetricsPort = 9100;

// Declares --server, which every command of the client side has: the machine, and the port of what the command speaks
// with it. An address without a port keeps the port of `server`, so that one WINNOW_SERVER serves all commands.
// `what`: what the help says that the address is of.
void DeclareServer(Fields& fields, HostPort* server, std::string_view what);

// The same of commands that speak with several servers: --server=A,B. An address without a port has that of the first
// of `servers`.
void DeclareServers(Fields& fields, std::vector<HostPort>* servers, std::string_view what);

// Declares --api-key.
void DeclareApiKey(Fields& fields, std::string* api_key);

// A server of the gRPC API, and who calls it.
struct ServerOptions {
  HostPort address{"127.0.0.1", kGrpcPort};
  std::string api_key;
  ClientSecurity security;

  void Declare(Fields& fields);
};

// An error of a call with, where nobody answered, what to do about it.
absl::Status WithServerHint(const absl::Status& status);

}  // namespace winnow
