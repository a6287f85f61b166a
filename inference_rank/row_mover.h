#pragma once

namespace winnow {

// Moves KV rows, of a size fixed beforehand, to places in a device's memory. Moves take effect in the order of the
// calls, before any work that is enqueued on the device after they have been flushed (by whoever enqueues it). Engine
// thread.
class RowMover {
 public:
  virtual ~RowMover() = default;
  // `host_row` may be reused at once.
  virtual void Write(void* to, const void* host_row) = 0;
  virtual void Copy(void* to, const void* device_row) = 0;
};

}  // namespace winnow
