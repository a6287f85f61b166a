#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "common/base/parallel_for.h"

namespace winnow {

// Works out the CRC-32C of payloads, of long ones by several threads where there are some: one core goes over some 20
// GB/s of its own memory, and less of what another core has just written.
class PayloadChecksum {
 public:
  PayloadChecksum() = default;
  // `threads` may be empty. They are those of whoever asks for checksums.
  explicit PayloadChecksum(ParallelFor threads) : threads_(std::move(threads)) {}
  // Of a payload whose checksum is known.
  explicit PayloadChecksum(uint32_t known) : known_(known) {}

  // `payload`: at most kMaxPayloadBytes.
  uint32_t Of(std::span<const std::byte> payload) const;

 private:
  ParallelFor threads_;
  std::optional<uint32_t> known_;
};

}  // namespace winnow
