#include "common/discovery/registry_url.h"

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/config/host_address.h"

namespace winnow {

absl::StatusOr<RegistryUrl> RegistryUrl::Parse(std::string_view text) {
  RegistryUrl url;
  absl::string_view rest = AbslSv(text);
  if (absl::ConsumePrefix(&rest, "etcds://")) {
    url.encrypted = true;
  } else if (!absl::ConsumePrefix(&rest, "etcd://")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected etcd://HOST:PORT[,HOST:PORT...][/PREFIX], or etcds:// for TLS, got \"", AbslSv(text), "\""));
  }
  const size_t slash = rest.find('/');
  const absl::string_view endpoints = rest.substr(0, slash);
  if (endpoints.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no HOST:PORT after \"", url.encrypted ? "etcds" : "etcd", "://\""));
  }
  if (absl::StrContains(endpoints, "@")) {
    return absl::InvalidArgumentError("user names and passwords are not supported: etcds:// shows a certificate");
  }
  absl::StatusOr<std::vector<HostPort>> parsed = ParseHostPorts({endpoints.data(), endpoints.size()});
  if (!parsed.ok()) return Annotate(parsed.status(), absl::StrCat("the endpoints \"", endpoints, "\""));
  url.endpoints = *std::move(parsed);
  for (const HostPort& endpoint : url.endpoints) {
    if (endpoint.port == 0) return absl::InvalidArgumentError(absl::StrCat(endpoint.ToString(), ": port 0"));
  }
  if (slash == absl::string_view::npos) return url;
  absl::string_view prefix = rest.substr(slash + 1);
  absl::ConsumeSuffix(&prefix, "/");
  if (prefix.empty()) return url;
  const std::string_view allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./";
  if (const size_t bad = prefix.find_first_not_of(AbslSv(allowed)); bad != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("the prefix \"", prefix, "\" has the character '",
                                                   prefix.substr(bad, 1), "': letters, digits and -_./ are allowed"));
  }
  url.prefix = std::string(prefix);
  return url;
}

std::string RegistryUrl::ToString() const {
  return absl::StrCat(encrypted ? "etcds://" : "etcd://", winnow::ToString(endpoints), "/", prefix);
}

}  // namespace winnow
