#pragma once
#include <cstdint>
#include <optional>

#include "router/generation/generation.h"

namespace winnow {

// What a client that resumes has of one output, and how much of it has been said again.
class ClientPosition {
 public:
  ClientPosition() = default;
  // Without `text_bytes` it has all text that came with its tokens.
  explicit ClientPosition(uint32_t next_index, std::optional<uint64_t> text_bytes = std::nullopt)
      : next_index_(next_index), text_bytes_(text_bytes) {}

  // Takes out of the output's next delta what the client has. Deltas end where its tokens end. False: nothing is left.
  bool Trim(TextDelta* delta);

 private:
  uint32_t next_index_ = 0;
  std::optional<uint64_t> text_bytes_;
  uint64_t said_bytes_ = 0;
};

}  // namespace winnow
