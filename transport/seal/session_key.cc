#include "transport/seal/session_key.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <cstring>

namespace winnow {

SessionKey::~SessionKey() {
  OPENSSL_cleanse(bytes_.data(), bytes_.size());
}

absl::StatusOr<SessionKey> SessionKey::Make() {
  SessionKey key;
  if (RAND_bytes(key.bytes_.data(), kBytes) != 1) {
    return absl::UnavailableError("there are no random bytes for the key of a link");
  }
  return key;
}

absl::StatusOr<SessionKey> SessionKey::FromBytes(std::string_view bytes) {
  if (bytes.size() != kBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the key of a link has ", bytes.size(), " bytes, not ", kBytes));
  }
  SessionKey key;
  std::memcpy(key.bytes_.data(), bytes.data(), kBytes);
  return key;
}

}  // namespace winnow
