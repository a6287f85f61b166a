#pragma once
#include <cstddef>

#include "common/base/status.h"
#include "transport/transport.h"

namespace winnow {

// INVALID_ARGUMENT when the frame carries less than it says.
inline absl::Status CheckPayload(const ReceivedFrame& frame, size_t expected_bytes) {
  if (frame.payload().size() >= expected_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("frame type ", static_cast<int>(frame.header().type), " has ",
                                                 frame.payload().size(), " bytes of payload, not ", expected_bytes));
}

}  // namespace winnow
