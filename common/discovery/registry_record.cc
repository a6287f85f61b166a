#include "common/discovery/registry_record.h"

#include "absl/strings/str_cat.h"
#include "common/base/json.h"

namespace winnow {
namespace {

const char* FolderOf(v1::Role role) {
  switch (role) {
    case v1::ROLE_INFERENCE_RANK:
      return "inference-ranks";
    case v1::ROLE_CACHE_RANK:
      return "cache-ranks";
    default:
      return "routers";
  }
}

std::string Folder(const RegistryUrl& registry, std::string_view cluster, v1::Role role) {
  return absl::StrCat(registry.prefix, "/", AbslSv(cluster), "/", FolderOf(role), "/");
}

}  // namespace

std::string RegistryRecord::Key(const RegistryUrl& registry, std::string_view cluster) const {
  return Folder(registry, cluster, role) + (role == v1::ROLE_ROUTER ? grpc_address : name);
}

std::string RegistryRecord::Value() const {
  nlohmann::ordered_json value = {
      {"name", name},
      {"incarnation", absl::StrCat(absl::Hex(incarnation, absl::kZeroPad16))},
      {"grpc", grpc_address},
  };
  if (!http_address.empty()) value["http"] = http_address;
  return value.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string RouterKeys(const RegistryUrl& registry, std::string_view cluster) {
  return Folder(registry, cluster, v1::ROLE_ROUTER);
}

std::optional<HostPort> RouterAddressOf(std::string_view value) {
  const auto json = ParseJson(value);
  if (!json.is_object()) return std::nullopt;
  const auto grpc = json.find("grpc");
  if (grpc == json.end() || !grpc->is_string()) return std::nullopt;
  absl::StatusOr<HostPort> address = ParseHostPort(grpc->get<std::string>());
  if (!address.ok() || address->port == 0) return std::nullopt;
  return *std::move(address);
}

}  // namespace winnow
