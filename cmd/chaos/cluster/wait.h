#pragma once
#include <chrono>
#include <stop_token>
#include <string>

namespace winnow::chaos {

using Clock = std::chrono::steady_clock;

// Sleeps; false when it is stopped meanwhile.
bool SleepFor(std::chrono::milliseconds time, const std::stop_token& stop);

// "1.32 s" or "12 ms".
std::string TimeText(Clock::duration time);

}  // namespace winnow::chaos
