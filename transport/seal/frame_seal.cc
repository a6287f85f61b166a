#include "transport/seal/frame_seal.h"

#include <openssl/evp.h>

#include <array>
#include <cstring>

#include "common/base/check.h"
#include "transport/wire/crc32c.h"
#include "transport/wire/wire_check.h"

namespace winnow {
namespace {

// What GCM must not see twice under one key.
using Nonce = std::array<uint8_t, 12>;

Nonce NonceOf(FrameSeal::End sender, const wire::FrameHeader& header) {
  Nonce nonce{};
  nonce[0] = static_cast<uint8_t>(sender);
  nonce[1] = header.type == wire::FrameType::kCredit ? 1 : 0;  // credits are numbered apart
  std::memcpy(&nonce[4], &header.frame_number, sizeof(header.frame_number));
  return nonce;
}

// The header as it is authenticated: without what is worked out after it.
wire::FrameHeader Unsealed(wire::FrameHeader header) {
  header.tag = {};
  header.header_crc32c = 0;
  return header;
}

const uint8_t* Bytes(const void* data) {
  return static_cast<const uint8_t*>(data);
}

// Feeds what the tag covers, transforming the payload where it is encrypted.
template <typename Update>
bool Feed(Update update, EVP_CIPHER_CTX* context, Protection level, const wire::FrameHeader& header,
          std::span<std::byte> payload) {
  int done = 0;
  if (update(context, nullptr, &done, Bytes(&header), sizeof(header)) != 1) return false;
  if (level == Protection::kHeaders || payload.empty()) return true;
  uint8_t* const out = level == Protection::kEncrypted ? reinterpret_cast<uint8_t*>(payload.data()) : nullptr;
  return update(context, out, &done, Bytes(payload.data()), static_cast<int>(payload.size())) == 1;
}

}  // namespace

void FrameSeal::FreeContext::operator()(EVP_CIPHER_CTX* context) const {
  EVP_CIPHER_CTX_free(context);
}

absl::StatusOr<std::unique_ptr<FrameSeal>> FrameSeal::Create(const LinkProtection& protection, End end) {
  WINNOW_CHECK(protection.level != Protection::kPlain);
  Context sealing(EVP_CIPHER_CTX_new()), opening(EVP_CIPHER_CTX_new());
  const uint8_t* const key = protection.key.data();
  if (sealing == nullptr || opening == nullptr ||
      EVP_EncryptInit_ex(sealing.get(), EVP_aes_256_gcm(), nullptr, key, nullptr) != 1 ||
      EVP_DecryptInit_ex(opening.get(), EVP_aes_256_gcm(), nullptr, key, nullptr) != 1) {
    return absl::UnavailableError("OpenSSL has no AES-256-GCM");
  }
  return std::unique_ptr<FrameSeal>(new FrameSeal(protection.level, end, std::move(sealing), std::move(opening)));
}

void FrameSeal::Seal(wire::FrameHeader& header, std::span<std::byte> payload, const PayloadChecksum& checksum) {
  header.magic = wire::kMagic;
  header.version = wire::kVersion;
  header.payload_bytes = payload.size();
  header.payload_crc32c = level_ == Protection::kHeaders ? checksum.Of(payload) : 0;
  header = Unsealed(header);
  const Nonce nonce = NonceOf(end_, header);
  EVP_CIPHER_CTX* const context = sealing_.get();
  int done = 0;
  const bool sealed = EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
                      Feed(EVP_EncryptUpdate, context, level_, header, payload) &&
                      EVP_EncryptFinal_ex(context, nullptr, &done) == 1 &&
                      EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, sizeof(header.tag), header.tag.data()) == 1;
  WINNOW_CHECK(sealed);
  SealHeader(header);
}

absl::Status FrameSeal::Open(const wire::FrameHeader& header, std::span<std::byte> payload,
                             const PayloadChecksum& checksum) {
  if (level_ == Protection::kHeaders) WINNOW_RETURN_IF_ERROR(CheckFramePayload(header, payload, checksum));
  if (payload.size() != header.payload_bytes) {
    return absl::DataLossError(
        absl::StrCat("frame carries ", payload.size(), " payload bytes, its header names ", header.payload_bytes));
  }
  wire::FrameHeader::Tag tag = header.tag;
  const wire::FrameHeader unsealed = Unsealed(header);
  const Nonce nonce = NonceOf(end_ == End::kCaller ? End::kAnswerer : End::kCaller, header);
  EVP_CIPHER_CTX* const context = opening_.get();
  int done = 0;
  const bool good = EVP_DecryptInit_ex(context, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
                    Feed(EVP_DecryptUpdate, context, level_, unsealed, payload) &&
                    EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, sizeof(tag), tag.data()) == 1 &&
                    EVP_DecryptFinal_ex(context, nullptr, &done) == 1;
  return good ? absl::OkStatus() : absl::DataLossError("frame was not sealed with the key of this link");
}

}  // namespace winnow
