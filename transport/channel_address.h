#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace winnow {

// What Channel::LocalAddress says, decoded. It passes through the control plane as opaque bytes, so it carries a
// checksum: a transport library is never handed bytes that did not come from one.
struct ChannelAddress {
  enum class Kind : uint32_t { kInproc = 1, kUcx = 2 };
  Kind kind = Kind::kInproc;
  uint32_t channel = 0;
  uint64_t incarnation = 0;
  uint64_t host = 0;     // equal on two channels of one running kernel, else different
  std::string endpoint;  // by kind

  std::string Encode() const;
  // INVALID_ARGUMENT unless Encode of this kind made the bytes.
  static absl::StatusOr<ChannelAddress> Decode(std::string_view bytes, Kind kind);
};

// Texts one after the other, each behind its length. Take answers nothing where `bytes` ends too early.
void AppendText(std::string& bytes, std::string_view text);
std::optional<std::string_view> TakeText(std::string_view& bytes);

}  // namespace winnow
