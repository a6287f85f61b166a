#include "transport/wire/payload_checksum.h"

#include <array>

#include "common/base/check.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/crc32c_shift.h"
#include "transport/wire/wire.h"

namespace winnow {
namespace {

// A part takes a core about a microsecond, as long as it takes to hand it out.
constexpr size_t kPartBytes = size_t{16} << 10;
constexpr size_t kLeastParts = 4;

}  // namespace

uint32_t PayloadChecksum::Of(std::span<const std::byte> payload) const {
  if (known_.has_value()) return *known_;
  const size_t parts = payload.size() / kPartBytes;
  if (threads_ == nullptr || parts < kLeastParts) return Crc32c(payload);
  std::array<uint32_t, wire::kMaxPayloadBytes / kPartBytes> checksums;
  WINNOW_CHECK(parts <= checksums.size());
  threads_(parts, [&](size_t part) { checksums[part] = Crc32c(payload.subspan(part * kPartBytes, kPartBytes)); });
  static const Crc32cShift shift(kPartBytes);
  uint32_t checksum = checksums[0];
  for (size_t part = 1; part < parts; ++part) checksum = shift(checksum) ^ checksums[part];
  return Crc32c(payload.subspan(parts * kPartBytes), checksum);
}

}  // namespace winnow
