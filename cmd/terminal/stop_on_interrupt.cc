#include "cmd/terminal/stop_on_interrupt.h"

#include "common/base/stop_signals.h"

namespace winnow {

StopOnInterrupt::StopOnInterrupt() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  thread_ = std::jthread([this](const std::stop_token& ended) {
    while (!ended.stop_requested()) {
      const int number = StopSignalWithin(std::chrono::milliseconds(50));
      if (number == 0) continue;
      if (source_.stop_requested()) EndByStopSignal(number);
      source_.request_stop();
    }
  });
}

StopOnInterrupt::~StopOnInterrupt() {
  thread_.request_stop();
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace winnow
