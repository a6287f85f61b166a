#pragma once
#include <vector>

#include "common/base/status.h"
#include "tests/e2e/completion.h"

namespace winnow {

// One streamed answer. Times are seconds on a clock that all streams of a run share, 0 when the run began.
struct TimedStream {
  double sent_s = 0;
  std::vector<double> token_s;  // arrival of each token at the client
  double hit_ratio = 0, captured_mass = 0;
  double streamed_bytes = 0;  // in all

  double time_to_first_token_s() const { return token_s.front() - sent_s; }
};

// Sends all prompts at once to POST /v1/completions, each over a connection and from a thread of its own, and reads
// exactly `max_tokens` tokens of each. The client reads events as bytes while they come and parses them afterwards.
absl::StatusOr<std::vector<TimedStream>> RunStreams(const std::string& http_address,
                                                    const std::vector<e2e::TokenIds>& prompts, int max_tokens);

// The same of requests that differ. One with `after_events` is sent once each of those without has received so many
// events. Those with `after_end_events` are given up when they have received so many since the former ended.
struct StreamRequest {
  e2e::TokenIds prompt;
  int max_tokens = 0;
  size_t after_events = 0;
  size_t after_end_events = 0;
};
absl::StatusOr<std::vector<TimedStream>> RunStreams(const std::string& http_address,
                                                    const std::vector<StreamRequest>& requests);

struct DecodeRate {
  double tokens_per_s = 0;         // all streams together: median over windows
  double lowest = 0, highest = 0;  // of the windows
};

// Tokens/s in the phase in which all streams decode, cut into windows of equal length in time. The first
// `skip_tokens` tokens of the stream that started last are left out: the warm-up.
std::vector<double> DecodeWindows(const std::vector<TimedStream>& streams, size_t skip_tokens, int windows);
DecodeRate Summarize(std::vector<double> windows);

}  // namespace winnow
