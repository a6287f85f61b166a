#pragma once
#include <cstddef>
#include <functional>
#include <span>

#include "transport/wire/wire.h"

namespace winnow {

enum class PostFault {
  kNone,
  kDrop,  // the frame is lost on its way; its number is used up
  kFail,  // the link refuses the frame: Post fails
};

// A link that lies, for tests. Called with each sealed frame just before it leaves, and may change its bytes.
using LinkFaults = std::function<PostFault(wire::FrameHeader& header, std::span<std::byte> payload)>;

}  // namespace winnow
