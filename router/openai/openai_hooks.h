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
  // Once per completions or chat completions request, refused ones too. For a stream that broke off, the status that
  // its error would have had before the first chunk; 499 when the client went away.
  std::function<void(int http_status)> on_answer;
  // Once per admitted request: "stop", "cancelled" or "error".
  std::function<void(std::string_view endpoint, std::string_view outcome, uint32_t prompt_tokens,
                     uint32_t completion_tokens, double seconds)>
      on_generation;
};

}  // namespace winnow
