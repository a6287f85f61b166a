#include "common/base/stop_signals.h"

#include <algorithm>

namespace winnow {

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

void BlockStopSignals() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

int StopSignalWithin(std::chrono::milliseconds time) {
  const sigset_t set = StopSignals();
  const timespec limit{time.count() / 1000, time.count() % 1000 * 1'000'000};
  return std::max(sigtimedwait(&set, nullptr, &limit), 0);
}

void EndByStopSignal(int number) {
  signal(number, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  raise(number);
}

}  // namespace winnow
