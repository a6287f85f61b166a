#pragma once
#include <chrono>
#include <cstdint>

namespace winnow {

// How iterations are filled and who waits; see Scheduler and InjectController.
struct SchedulingOptions {
  uint32_t max_batch_tokens = 0;             // 0 = no limit beside those of rows and of prefill chunks; at least 2
  uint32_t max_inject_tokens = 0;            // 0 = as many as a prefill chunk
  std::chrono::microseconds tpot_target{0};  // 0 = none
  std::chrono::microseconds age_bound{30'000'000};  // 0 = none
  bool working_set_control = true;
};

}  // namespace winnow
