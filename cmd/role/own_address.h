#pragma once
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/parse_value.h"

namespace winnow {

// As --grpc or --metrics host: the address of this machine on the way to the router.
inline constexpr char kAutoHost[] = "auto";

// Where to listen: `wanted`, with the host "auto" replaced by the address that connections to the routers come from, or
// by loopback where they are all on this machine. UNAVAILABLE when no router's name is known yet.
absl::StatusOr<HostPort> ListenAddress(const HostPort& wanted, const std::vector<HostPort>& routers);

// What others are told, for a server that listens on `listen`: `advertise` ("HOST" or "HOST:PORT"), where it is not
// empty, else the address that it listens on, or the one towards the router where it listens on all.
// FAILED_PRECONDITION when only this machine would reach it there while the router, at a numeric address, is on
// another.
absl::StatusOr<std::string> AdvertisedAddress(const std::string& advertise, const HostPort& listen,
                                              const HostPort& router);

// What a router publishes in the registry at a numeric address: as above. FAILED_PRECONDITION when only this machine
// would reach it there while the registry is on another.
absl::StatusOr<std::string> PublishedAddress(const std::string& advertise, const HostPort& listen,
                                             const HostPort& registry);

// INVALID_ARGUMENT for what --advertise cannot be.
absl::Status CheckAdvertise(const std::string& advertise);

}  // namespace winnow
