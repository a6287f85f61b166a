#pragma once
#include <string>
#include <string_view>

namespace winnow {

// Whose cached prefixes a request may share: a digest of the credentials that came with it (the Authorization header,
// or gRPC metadata of that name), which themselves go no further. Requests without any share with each other.
std::string TenantOf(std::string_view credentials);

}  // namespace winnow
