#include "cmd/role/own_address.h"

#include "common/config/host_address.h"

namespace winnow {
namespace {

// "HOST", "[::1]" or "HOST:PORT"; port 0 where there is none.
absl::StatusOr<HostPort> ParseAdvertise(const std::string& text) {
  absl::StatusOr<HostPort> whole = ParseHostPort(text);
  if (whole.ok()) return whole;
  return ParseHostPort(text + ":0");
}

}  // namespace

absl::StatusOr<HostPort> ListenAddress(const HostPort& wanted, const std::vector<HostPort>& routers) {
  if (wanted.host != kAutoHost) return wanted;
  absl::Status unknown;
  for (const HostPort& router : routers) {
    const absl::StatusOr<std::vector<HostPort>> addresses = ResolveHost(router);
    if (!addresses.ok()) {
      unknown = addresses.status();
      continue;
    }
    for (const HostPort& address : *addresses) {
      if (IsLoopbackHost(address.host) || IsWildcardHost(address.host)) continue;
      WINNOW_ASSIGN_OR_RETURN(std::string host, LocalHostTowards(address));
      return HostPort{std::move(host), wanted.port};
    }
  }
  WINNOW_RETURN_IF_ERROR(unknown);
  return HostPort{"127.0.0.1", wanted.port};
}

absl::StatusOr<std::string> AdvertisedAddress(const std::string& advertise, const HostPort& listen,
                                              const HostPort& router) {
  HostPort address = listen;
  if (!advertise.empty()) {
    WINNOW_ASSIGN_OR_RETURN(address, ParseAdvertise(advertise));
    if (address.port == 0) address.port = listen.port;
  } else if (IsWildcardHost(listen.host)) {
    WINNOW_ASSIGN_OR_RETURN(address.host, LocalHostTowards(router));
  }
  // A router at an address of this machine is on this machine, whatever the address.
  if (IsLoopbackHost(address.host) && !IsLoopbackHost(router.host)) {
    WINNOW_ASSIGN_OR_RETURN(const std::string local, LocalHostTowards(router));
    if (local != router.host) {
      return absl::FailedPreconditionError(
          absl::StrCat("this rank listens on ", listen.ToString(), " and would advertise ", address.ToString(),
                       ", which the router at ", router.ToString(),
                       " cannot reach: set --grpc (and --metrics) to an address of ", "this machine such as ", local,
                       ", or to ", kAutoHost, ":0, and --advertise where others reach it elsewhere"));
    }
  }
  return address.ToString();
}

absl::StatusOr<std::string> PublishedAddress(const std::string& advertise, const HostPort& listen,
                                             const HostPort& registry) {
  absl::StatusOr<std::string> address = AdvertisedAddress(advertise, listen, registry);
  if (!absl::IsFailedPrecondition(address.status())) return address;
  return absl::FailedPreconditionError(absl::StrCat(
      "this router listens on ", listen.ToString(), ", and ranks that find it in the registry at ", registry.ToString(),
      " could not reach it there: set --grpc to an address of this machine, or --advertise"));
}

absl::Status CheckAdvertise(const std::string& advertise) {
  if (advertise.empty()) return absl::OkStatus();
  const absl::StatusOr<HostPort> address = ParseAdvertise(advertise);
  if (!address.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("expected HOST or HOST:PORT, got \"", advertise, "\""));
  }
  if (IsWildcardHost(address->host)) return absl::InvalidArgumentError("nobody can connect to a wildcard address");
  return absl::OkStatus();
}

}  // namespace winnow
