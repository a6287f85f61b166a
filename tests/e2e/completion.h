#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/e2e/json.h"
#include "tools/load/http_client.h"

namespace winnow::e2e {

using TokenIds = std::vector<uint32_t>;

// What came of one request to /v1/completions with one output.
struct Completion {
  int status = 0;
  std::string error;  // the body, when the status is not 200 or the stream broke off
  TokenIds ids;
  std::string text;
  std::string finish_reason;
  Json usage;   // null when a stream had none
  Json choice;  // of a whole answer

  bool ok() const { return status == 200 && error.empty() && !finish_reason.empty(); }
  // One number of the "winnow" part of usage; -1 when it is missing.
  double Stat(const char* name) const;
};

// A greedy request of exactly `max_tokens` tokens whose answer carries token ids; tests change what they like.
Json GreedyRequest(const TokenIds& prompt, int max_tokens);

Completion Complete(const HttpClient& client, const Json& request);

// The same as a stream. `on_token` gets the number of tokens so far after each event that brought some; when it answers
// false the connection is closed and the completion is what had come until then.
Completion StreamCompletion(const HttpClient& client, Json request, const std::function<bool(size_t)>& on_token = {});

}  // namespace winnow::e2e
