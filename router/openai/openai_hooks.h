#pragma once
#include <cstdint>
#include <functional>
#include <string_view>

namespace winnow {

// Where the OpenAI front end reports latencies and tokens; empty members are not called. Called from the HTTP server's
// threads, several at once.
struct OpenAiHooks {
  std::function<void(double seconds)> on_time_to_first_token;  // per output
  std::function<void(double seconds)> on_inter_token_latency;  // per token after the first of an output
  // Once per admitted request: "stop", "cancelled" or "error".
  std::function<void(std::string_view endpoint, std::string_view outcome, uint32_t prompt_tokens,
                     uint32_t completion_tokens, double seconds)>
      on_generation;
};

}  // namespace winnow
