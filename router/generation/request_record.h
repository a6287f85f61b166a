#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace winnow {

// What the log says of a request that has ended: nothing of what was asked and answered.
struct RequestRecord {
  std::string request_id;  // the client's, or one that was made
  uint32_t prompt_tokens = 0;
  uint32_t cached_prompt_tokens = 0;
  uint32_t completion_tokens = 0;  // of all outputs
  uint32_t outputs = 1;
  std::optional<std::chrono::duration<double>> first_token = {};  // after the arrival; absent: there was none
  std::chrono::duration<double> duration{0};
  std::string ended = {};  // "stop", "length", "abort", or the code of the error
  // Inference ranks that the first output was seen on, in their order, and cache ranks.
  std::vector<std::string> ranks = {};
  std::string trace_id = {};  // empty: it is in no trace
};

// "request id=... prompt_tokens=... ... ranks=inference-0,cache-0", in which every value is one word: what a client has
// chosen is quoted where it is none.
std::string LogLine(const RequestRecord& record);

}  // namespace winnow
