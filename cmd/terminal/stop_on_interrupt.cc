#include "cmd/terminal/stop_on_interrupt.h"

namespace winnow {
namespace {

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

void EndAsUsual(int number) {
  signal(number, SIG_DFL);
  const sigset_t set = Signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(number);
}

}  // namespace

StopOnInterrupt::StopOnInterrupt() {
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  thread_ = std::jthread([this](const std::stop_token& ended) {
    const sigset_t signals = Signals();
    const timespec tick{0, 50'000'000};
    while (!ended.stop_requested()) {
      const int number = sigtimedwait(&signals, nullptr, &tick);
      if (number < 0) continue;
      if (source_.stop_requested()) EndAsUsual(number);
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
