#include "router/generation/grpc_caller.h"

#include "router/keys/tenant.h"

namespace winnow {

absl::StatusOr<Caller> CallerOfCall(const grpc::CallbackServerContext& context, const Authenticator& authenticate) {
  const auto& metadata = context.client_metadata();
  const auto entry = metadata.find("authorization");
  const std::string_view credentials =
      entry == metadata.end() ? std::string_view() : std::string_view(entry->second.data(), entry->second.size());
  if (authenticate) return authenticate(credentials);
  return Caller{.tenant = TenantOf(credentials)};
}

}  // namespace winnow
