#pragma once
#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "winnow/v1/rank.pb.h"

namespace winnow {

// Tells of a sequence's end that is no good one. The caller says whether it may be tried again.
inline v1::DispatchResponse FailedEvent(uint64_t request_id, const absl::Status& status) {
  v1::DispatchResponse event;
  event.set_request_id(request_id);
  event.mutable_failed()->set_code(static_cast<uint32_t>(status.code()));
  event.mutable_failed()->set_message(std::string(status.message()));
  return event;
}

}  // namespace winnow
