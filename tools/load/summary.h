#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace winnow {

// What a client saw of one request. Times are seconds after the start of the run.
struct RequestTimes {
  double due_s = 0;   // when the workload wanted it sent
  double sent_s = 0;  // when it was
  double end_s = 0;
  std::vector<double> token_s;  // arrival of each token; a text may leave tokens out that bring no text
  uint32_t output_tokens = 0;   // as the server counted them; 0: it did not
  uint32_t prompt_tokens = 0;   // as the server counted them
  uint32_t cached_tokens = 0;   // of them, taken from the prefix cache
  std::string error;            // empty: it ended as it should

  uint64_t num_tokens() const { return output_tokens > 0 ? output_tokens : token_s.size(); }
};

// Mean and percentiles; percentiles interpolate linearly between order statistics, as NumPy's default does.
struct Distribution {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0;
  size_t count = 0;
};
Distribution DistributionOf(std::vector<double> values);

// Limits of a good request; infinite: no limit.
struct LoadTargets {
  double ttft_s = 1e30;
  double tpot_s = 1e30;
  double end_to_end_s = 1e30;
};

// The usual figures of a serving benchmark. TTFT: first token after sending. TPOT: time after the first token, by the
// tokens after the first. ITL: gaps between arrivals, of all requests together. End to end: sending to the end.
struct LoadSummary {
  size_t completed = 0, failed = 0;
  double duration_s = 0;  // start to the end of the last request
  uint64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  Distribution ttft_s, tpot_s, itl_s, end_to_end_s;
  Distribution lateness_s;  // of sending: large means that the client was the bottleneck
  double requests_per_s = 0, output_tokens_per_s = 0;
  double goodput_per_s = 0;  // requests that met every target, per second
};
LoadSummary Summarize(const std::vector<RequestTimes>& requests, const LoadTargets& targets);

}  // namespace winnow
