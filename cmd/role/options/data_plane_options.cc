#include "cmd/role/options/data_plane_options.h"

namespace winnow {

void DeclareDataPlane(Fields& fields, DataPlaneMode* mode) {
  fields.Enum(
      "data-plane", mode,
      {{"auto", DataPlaneMode::kAuto},
       {"plain", DataPlaneMode::kPlain},
       {"authenticated", DataPlaneMode::kAuthenticated},
       {"encrypted", DataPlaneMode::kEncrypted}},
      "How KV between ranks is kept from others, by a key of each link that goes over gRPC: plain, authenticated "
      "(frames of others are refused), or encrypted as well, which needs TLS. auto: with TLS encrypted between hosts, "
      "and headers authenticated within one; without TLS plain. What GPUs store into each other is plain; encrypted "
      "does without it.");
}

absl::Status CheckDataPlane(DataPlaneMode mode, bool has_tls) {
  if (mode != DataPlaneMode::kEncrypted || has_tls) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "--data-plane=encrypted needs --tls-cert, --tls-key and --tls-ca: without TLS the keys of links could be read on "
      "their way");
}

}  // namespace winnow
