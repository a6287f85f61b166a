#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "common/base/status.h"
#include "tools/load/length_mix.h"

namespace winnow::chaos {

struct RequestOptions {
  uint32_t count = 64;
  LengthMix prompt, answer;  // tokens
  std::string mix = "greedy,seeded,samples,structured";
  uint32_t first_token_id = 100;
  uint32_t token_ids = 3000;
  uint64_t seed = 1;
};

// A request of the load, which has one right answer.
struct Request {
  std::string kind;
  nlohmann::json body;  // of /v1/completions, streamed
  uint32_t prompt_tokens = 0;
  int samples = 1;
};

// A pure function of the options; kinds of the mix take turns:
//   greedy      the likeliest token
//   seeded      drawn with a seed
//   samples     n of 2 to 4, drawn with a seed
//   structured  JSON of a schema; every second one drawn with a seed
// INVALID_ARGUMENT names a kind that does not exist.
absl::StatusOr<std::vector<Request>> DrawRequests(const RequestOptions& options);

}  // namespace winnow::chaos
