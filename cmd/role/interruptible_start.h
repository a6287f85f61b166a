#pragma once
#include <thread>

namespace winnow {

// A process that keeps its stop signals blocked, so as to wait for them once it serves, would not heed them while it
// starts, and a model may take minutes to load. While this object lives they end the process there and then, as if
// nothing had been done about them: nobody has been served yet.
class InterruptibleStart {
 public:
  InterruptibleStart();   // The calling thread has StopSignals and SIGUSR1 blocked.
  ~InterruptibleStart();  // Signals that come from now on stay pending.
  InterruptibleStart(const InterruptibleStart&) = delete;
  InterruptibleStart& operator=(const InterruptibleStart&) = delete;

 private:
  std::thread waiter_;
};

}  // namespace winnow
