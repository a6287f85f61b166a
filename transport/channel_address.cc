#include "transport/channel_address.h"

#include <cstring>

#include "transport/wire/crc32c.h"

namespace winnow {
namespace {

constexpr uint32_t kMagic = 0x42434e57;  // "WNCB": grows with the layout of addresses

struct Prefix {
  uint32_t magic;
  uint32_t kind;
  uint32_t channel;
  uint32_t crc32c;  // over the whole address with this field 0
  uint64_t incarnation;
  uint64_t host;
};
static_assert(sizeof(Prefix) == 32);

uint32_t Checksum(Prefix prefix, std::string_view endpoint) {
  prefix.crc32c = 0;
  const uint32_t crc = Crc32c(std::as_bytes(std::span(&prefix, 1)));
  return Crc32c(std::as_bytes(std::span(endpoint)), crc);
}

}  // namespace

std::string ChannelAddress::Encode() const {
  Prefix prefix{kMagic, static_cast<uint32_t>(kind), channel, 0, incarnation, host};
  prefix.crc32c = Checksum(prefix, endpoint);
  std::string bytes(sizeof(prefix), '\0');
  std::memcpy(bytes.data(), &prefix, sizeof(prefix));
  return bytes + endpoint;
}

absl::StatusOr<ChannelAddress> ChannelAddress::Decode(std::string_view bytes, Kind kind) {
  Prefix prefix;
  if (bytes.size() < sizeof(prefix)) return absl::InvalidArgumentError("peer address is cut off");
  std::memcpy(&prefix, bytes.data(), sizeof(prefix));
  const std::string_view endpoint = bytes.substr(sizeof(prefix));
  if (prefix.magic != kMagic || prefix.crc32c != Checksum(prefix, endpoint)) {
    return absl::InvalidArgumentError("peer address was not made by a transport");
  }
  if (prefix.kind != static_cast<uint32_t>(kind)) {
    return absl::InvalidArgumentError("peer address belongs to another kind of transport");
  }
  return ChannelAddress{kind, prefix.channel, prefix.incarnation, prefix.host, std::string(endpoint)};
}

void AppendText(std::string& bytes, std::string_view text) {
  const uint32_t size = static_cast<uint32_t>(text.size());
  bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
  bytes.append(text);
}

std::optional<std::string_view> TakeText(std::string_view& bytes) {
  uint32_t size = 0;
  if (bytes.size() < sizeof(size)) return std::nullopt;
  std::memcpy(&size, bytes.data(), sizeof(size));
  if (bytes.size() - sizeof(size) < size) return std::nullopt;
  const std::string_view text = bytes.substr(sizeof(size), size);
  bytes.remove_prefix(sizeof(size) + size);
  return text;
}

}  // namespace winnow
