#pragma once
#include <string>
#include <string_view>

#include "common/tls/tls_files.h"

namespace winnow {

// An authority in a folder of its own, and certificates that it signs: made by the openssl program, as a site would.
class TestAuthority {
 public:
  // Fails the test where openssl does not do as it is told.
  explicit TestAuthority(std::string folder);

  const std::string& certificate() const { return certificate_; }
  // NAME.crt and NAME.key, with these names ("URI:spiffe://winnow/router,DNS:localhost"); written anew each time.
  TlsFiles Issue(std::string_view name, std::string_view names) const;

 private:
  const std::string folder_;
  const std::string certificate_;
};

}  // namespace winnow
