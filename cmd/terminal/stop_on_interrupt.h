#pragma once
#include <signal.h>

#include <stop_token>
#include <thread>

namespace winnow {

// Makes the first Ctrl-C or SIGTERM a request to stop, so that a long measurement can say what it has; the second ends
// the process as if nothing had been done about it. To be made before other threads are.
class StopOnInterrupt {
 public:
  StopOnInterrupt();
  ~StopOnInterrupt();
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;

  std::stop_token token() const { return source_.get_token(); }
  bool interrupted() const { return source_.stop_requested(); }

 private:
  sigset_t before_;
  std::stop_source source_;
  std::jthread thread_;
};

}  // namespace winnow
