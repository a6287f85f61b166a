#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/discovery/registry_url.h"
#include "winnow/v1/identity.pb.h"

namespace winnow {

// What the registry has of one process. Routers have a key for each address, so that several may have the name that
// routers have by default; ranks have one for each name, which belongs to one start of a process at a time.
struct RegistryRecord {
  v1::Role role = v1::ROLE_UNSPECIFIED;
  std::string name;
  uint64_t incarnation = 0;
  std::string grpc_address;
  std::string http_address;  // of routers

  // "winnow/local/routers/10.0.0.1:8001", "winnow/local/cache-ranks/cache-0".
  std::string Key(const RegistryUrl& registry, std::string_view cluster) const;
  // A JSON object, for people and other programs to read: {"name":..,"incarnation":"<hex>","grpc":..,"http":..}.
  std::string Value() const;
};

// What all keys of routers begin with.
std::string RouterKeys(const RegistryUrl& registry, std::string_view cluster);

// The gRPC address in a router's value; absent when it has none that can be read.
std::optional<HostPort> RouterAddressOf(std::string_view value);

}  // namespace winnow
