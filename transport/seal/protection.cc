#include "transport/seal/protection.h"

namespace winnow {

std::string_view ModeName(DataPlaneMode mode) {
  switch (mode) {
    case DataPlaneMode::kAuto:
      return "auto";
    case DataPlaneMode::kPlain:
      return "plain";
    case DataPlaneMode::kAuthenticated:
      return "authenticated";
    case DataPlaneMode::kEncrypted:
      return "encrypted";
  }
  return "unknown";
}

std::string_view ProtectionName(Protection protection) {
  switch (protection) {
    case Protection::kPlain:
      return "plain";
    case Protection::kHeaders:
      return "headers authenticated";
    case Protection::kAuthenticated:
      return "authenticated";
    case Protection::kEncrypted:
      return "encrypted";
  }
  return "unknown";
}

absl::StatusOr<Protection> ChooseProtection(DataPlaneMode caller, DataPlaneMode answerer,
                                            const LinkSurroundings& link) {
  if (caller != answerer && caller != DataPlaneMode::kAuto && answerer != DataPlaneMode::kAuto) {
    return absl::FailedPreconditionError(absl::StrCat("--data-plane is ", AbslSv(ModeName(caller)),
                                                      " at the caller and ", AbslSv(ModeName(answerer)),
                                                      " here: ranks that exchange frames need the same"));
  }
  switch (caller != DataPlaneMode::kAuto ? caller : answerer) {
    case DataPlaneMode::kPlain:
      return Protection::kPlain;
    case DataPlaneMode::kAuthenticated:
      return Protection::kAuthenticated;
    case DataPlaneMode::kEncrypted:
      if (link.key_is_secret) return Protection::kEncrypted;
      return absl::FailedPreconditionError(
          "--data-plane=encrypted needs TLS (--tls-cert): without it the key of a link could be read on its way");
    case DataPlaneMode::kAuto:
      break;
  }
  if (!link.key_is_secret || !link.crosses_processes) return Protection::kPlain;
  return link.crosses_hosts ? Protection::kEncrypted : Protection::kHeaders;
}

}  // namespace winnow
