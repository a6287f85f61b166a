#include "cmd/role/interruptible_start.h"

namespace winnow {
namespace {

constexpr int kStarted = SIGUSR1;  // sent to the waiting thread alone

void EndWhenTold() {
  sigset_t set = StopSignals();
  sigaddset(&set, kStarted);
  int number = -1;
  while (number < 0) number = sigwaitinfo(&set, nullptr);  // a debugger may interrupt it
  if (number == kStarted) return;
  signal(number, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  raise(number);
}

}  // namespace

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

InterruptibleStart::InterruptibleStart() : waiter_(EndWhenTold) {}

InterruptibleStart::~InterruptibleStart() {
  pthread_kill(waiter_.native_handle(), kStarted);
  waiter_.join();
}

}  // namespace winnow
