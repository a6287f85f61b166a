#pragma once
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tools/load/summary.h"

namespace winnow {

// One request to be sent: greedy, and to its full length whatever the model says.
struct LoadRequest {
  std::vector<uint32_t> token_ids;
  uint32_t output_tokens = 0;
  std::stop_token stop = {};  // ends it early: whatever is returned then says nothing of the server
};

// Sends requests and notes when tokens come. Any number of threads may call Run at once; each call has a connection or
// stream of its own.
class LoadClient {
 public:
  virtual ~LoadClient() = default;
  // Fills sent_s, token_s, end_s, prompt_tokens, cached_tokens, output_tokens and error. `now_s` is the run's clock.
  virtual void Run(const LoadRequest& request, const std::function<double()>& now_s, RequestTimes& times) = 0;
};

struct LoadClientOptions {
  std::string address;    // HOST:PORT
  std::string model;      // empty: the one that is served (HTTP: must be given to servers other than winnow)
  std::string api_key;    // HTTP: Authorization: Bearer
  std::string selection;  // specification of winnow; empty: the server's
};

// POST /v1/completions with server-sent events, as any client of OpenAI's API sees them: an event with text is a
// token's arrival, and `usage` at the end counts tokens, those without text included.
std::unique_ptr<LoadClient> NewHttpLoadClient(const LoadClientOptions& options);
// winnow.v1.GenerationService.
std::unique_ptr<LoadClient> NewGrpcLoadClient(const LoadClientOptions& options);

}  // namespace winnow
