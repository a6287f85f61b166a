#pragma once
#include <string>
#include <string_view>

namespace winnow {

// The tenant of a router without API keys: a digest of the credentials that came with a request (the Authorization
// header, or gRPC metadata of that name), which themselves go no further. Requests without any are one tenant.
std::string TenantOf(std::string_view credentials);

}  // namespace winnow
