#include "cmd/connection/server_options.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace winnow {
namespace {

absl::StatusOr<HostPort> ParseServer(std::string_view text, uint16_t port) {
  const auto colons = std::count(text.begin(), text.end(), ':');
  const bool has_port = text.starts_with('[') ? text.find("]:") != std::string_view::npos : colons == 1;
  if (has_port) return ParseHostPort(text);
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  if (text.empty()) return absl::InvalidArgumentError("expected HOST or HOST:PORT, got \"\"");
  return HostPort{std::string(text), port};
}

}  // namespace

void DeclareServer(Fields& fields, HostPort* server, std::string_view what) {
  fields.Custom(
      "server", "HOST[:PORT]", absl::StrCat("Where the server is: ", AbslSv(what)),
      [server, port = server->port](std::string_view text) -> absl::Status {
        WINNOW_ASSIGN_OR_RETURN(*server, ParseServer(text, port));
        return absl::OkStatus();
      },
      [server] { return server->port == 0 ? server->host : server->ToString(); });
}

void DeclareServers(Fields& fields, std::vector<HostPort>* servers, std::string_view what) {
  fields.Custom(
      "server", "HOST[:PORT],...", absl::StrCat("Where the servers are: ", AbslSv(what)),
      [servers, port = servers->front().port](std::string_view text) -> absl::Status {
        std::vector<HostPort> parsed;
        for (const absl::string_view each : absl::StrSplit(AbslSv(text), ',')) {
          WINNOW_ASSIGN_OR_RETURN(parsed.emplace_back(), ParseServer({each.data(), each.size()}, port));
        }
        *servers = std::move(parsed);
        return absl::OkStatus();
      },
      [servers] {
        return absl::StrJoin(*servers, ",",
                             [](std::string* out, const HostPort& server) { *out += server.ToString(); });
      });
}

void DeclareApiKey(Fields& fields, std::string* api_key) {
  fields.Text("api-key", api_key,
              "For a server with keys. Better in the environment (WINNOW_API_KEY): command lines are seen by others.");
}

void ServerOptions::Declare(Fields& fields) {
  DeclareServer(fields, &address, "its gRPC address; without a port, 8001.");
  DeclareApiKey(fields, &api_key);
  security.Declare(fields);
}

absl::Status WithServerHint(const absl::Status& status) {
  if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
  const absl::string_view message = absl::StripSuffix(status.message(), "; is `winnow up` running?");
  const bool nobody = absl::StrContains(message, "no server") || absl::StrContains(message, "no answer") ||
                      absl::StrContains(message, "refused") || absl::StrContains(message, "failed to connect");
  if (!nobody) return status;
  return absl::UnavailableError(
      absl::StrCat(message, "; start one with `winnow up --model DIR`, or name another with --server=HOST[:PORT]"));
}

}  // namespace winnow
