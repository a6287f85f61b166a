#pragma once
#include "winnow/v1/rank.pb.h"

namespace winnow {

// Where a sequence's events go: the Dispatch stream it came on. Send may be called from any thread and does not wait;
// events of a stream that has ended are dropped.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void Send(v1::DispatchResponse event) = 0;
};

}  // namespace winnow
