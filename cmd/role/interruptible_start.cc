#include "cmd/role/interruptible_start.h"

#include <signal.h>

#include "common/base/stop_signals.h"

namespace winnow {
namespace {

constexpr int kStarted = SIGUSR1;  // sent to the waiting thread alone

void EndWhenTold() {
  sigset_t set = StopSignals();
  sigaddset(&set, kStarted);
  int number = -1;
  while (number < 0) number = sigwaitinfo(&set, nullptr);  // a debugger may interrupt it
  if (number != kStarted) EndByStopSignal(number);
}

}  // namespace

InterruptibleStart::InterruptibleStart() : waiter_(EndWhenTold) {}

InterruptibleStart::~InterruptibleStart() {
  pthread_kill(waiter_.native_handle(), kStarted);
  waiter_.join();
}

}  // namespace winnow
