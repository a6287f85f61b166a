#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace winnow {

// The secret of one link, made when it is opened and gone with it. It has no text form, so that it gets into no log.
class SessionKey {
 public:
  static constexpr size_t kBytes = 32;

  SessionKey() = default;
  SessionKey(const SessionKey&) = default;
  SessionKey& operator=(const SessionKey&) = default;
  ~SessionKey();  // wipes it

  // Of random bytes. UNAVAILABLE where the system has none.
  static absl::StatusOr<SessionKey> Make();
  // As a peer sent it: INVALID_ARGUMENT for bytes of another length.
  static absl::StatusOr<SessionKey> FromBytes(std::string_view bytes);

  // For the peer.
  std::string bytes() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }
  const uint8_t* data() const { return bytes_.data(); }

 private:
  std::array<uint8_t, kBytes> bytes_{};
};

}  // namespace winnow
