#pragma once
#include <openssl/types.h>

#include <memory>
#include <span>

#include "common/base/status.h"
#include "transport/seal/protection.h"
#include "transport/wire/payload_checksum.h"
#include "transport/wire/wire.h"

namespace winnow {

// What makes the frames of a link with a key good: AES-256-GCM, whose tag is FrameHeader::tag and takes the place of
// the payload's checksum. A number is used once: it is made of who sends, whether the frame is a credit, and the frame
// number, which only grows. One end's seal, for both directions.
class FrameSeal {
 public:
  // The two ends of a link. Each opens what the other has sealed.
  enum class End : uint8_t { kCaller, kAnswerer };

  // `protection` is above kPlain.
  static absl::StatusOr<std::unique_ptr<FrameSeal>> Create(const LinkProtection& protection, End end);

  // The counterpart of SealFrame (transport/wire/wire_check.h): fills in the same fields and the tag. Where frames are
  // encrypted the payload is, in place.
  void Seal(wire::FrameHeader& header, std::span<std::byte> payload, const PayloadChecksum& checksum = {});
  // False: payloads have a checksum, and no tag covers them.
  bool covers_payloads() const { return level_ != Protection::kHeaders; }
  // DATA_LOSS unless the other end has sealed header and payload under this frame number. The header must have passed
  // CheckFrameHeader. The payload is decrypted in place; after an error it is of no use.
  absl::Status Open(const wire::FrameHeader& header, std::span<std::byte> payload,
                    const PayloadChecksum& checksum = {});

 private:
  struct FreeContext {
    void operator()(EVP_CIPHER_CTX* context) const;
  };
  using Context = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

  FrameSeal(Protection level, End end, Context sealing, Context opening)
      : level_(level), end_(end), sealing_(std::move(sealing)), opening_(std::move(opening)) {}

  const Protection level_;
  const End end_;
  // Keyed once; every frame sets its number alone.
  const Context sealing_;
  const Context opening_;
};

}  // namespace winnow
