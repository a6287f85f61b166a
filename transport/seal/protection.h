#pragma once
#include <cstdint>
#include <string_view>

#include "common/base/status.h"
#include "transport/seal/session_key.h"

// How the frames of a link are kept from others than its two ends, and who decides it.

namespace winnow {

// What a rank is told to do (--data-plane). Ranks that are told something must be told the same; kAuto follows.
enum class DataPlaneMode : uint8_t { kAuto, kPlain, kAuthenticated, kEncrypted };
std::string_view ModeName(DataPlaneMode mode);

// What a link does. Each level refuses frames of those who do not have the link's key, and frames that are repeated,
// missing or out of order; they differ in what somebody can do who writes to and reads from the network between.
enum class Protection : uint8_t {
  kPlain,          // no key: whoever knows the numbers of the link can write frames
  kHeaders,        // a tag over the header, which holds the payload's CRC32C: payloads can be exchanged on their way
  kAuthenticated,  // a tag over header and payload: nothing can be changed
  kEncrypted,      // and nothing of the payload can be read
};
std::string_view ProtectionName(Protection protection);

// What is known about a link when it is opened.
struct LinkSurroundings {
  bool key_is_secret = false;  // the control plane, which carries the key, is encrypted
  bool crosses_hosts = false;
  bool crosses_processes = false;
};

// FAILED_PRECONDITION names what does not fit: modes that differ, or encryption without a secret key.
absl::StatusOr<Protection> ChooseProtection(DataPlaneMode caller, DataPlaneMode answerer, const LinkSurroundings& link);

// What the two ends of a link agree on over the control plane.
struct LinkProtection {
  Protection level = Protection::kPlain;
  SessionKey key;  // of zeros for kPlain
};

}  // namespace winnow
