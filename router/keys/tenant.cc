#include "router/keys/tenant.h"

#include <openssl/evp.h>

#include <array>

#include "absl/strings/escaping.h"
#include "common/base/check.h"

namespace winnow {

std::string TenantOf(std::string_view credentials) {
  if (credentials.empty()) return {};
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  WINNOW_CHECK(EVP_Digest(credentials.data(), credentials.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), size});
}

}  // namespace winnow
