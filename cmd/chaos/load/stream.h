#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "cmd/chaos/cluster/wait.h"
#include "cmd/chaos/load/requests.h"

namespace winnow::chaos {

// One sample of an answer, as its events said it.
struct Choice {
  std::vector<uint32_t> ids;
  std::string text;
  std::string finish_reason;
};

// An event with tokens.
struct Arrival {
  Clock::time_point at;
  uint32_t tokens = 0;
};

// What a client has of one request.
struct Answer {
  std::map<int, Choice> choices;
  std::vector<Arrival> arrivals;
  Clock::time_point sent, ended;
  bool done = false;      // the stream has ended as streams end
  int status = 0;         // of the latest response; 0: it broke off
  std::string error;      // why it is not done
  std::string breach;     // of what api.md says of streams; empty: none
  int refused = 0;        // times that it was not accepted and sent again
  int resumed = 0;        // times that it went on over another connection
  int retry_after_s = 0;  // of the latest refusal
  bool not_identical = false;
  int reattached = 0;
};

struct StreamOptions {
  std::vector<std::string> routers;  // HTTP addresses
  std::string api_key = {};
  std::chrono::milliseconds patience = std::chrono::seconds(120);  // for a whole answer
  std::chrono::milliseconds deadline{0};                           // that the server is told; 0: its own
  bool resumable = false;
  bool again = true;  // what is not accepted is sent again
  // Asked behind every event; true: the client goes away.
  std::function<bool(const Answer&)> leave = nullptr;
  std::stop_token stop = {};
};

// Sends a request and reads its answer to the end, as a client that does what docs/api.md says: what is not accepted it
// sends again after the time that it is told, and a resumable stream that ends too early it resumes, at the next
// router. `first_router`: where it begins.
Answer ReadAnswer(const Request& request, const StreamOptions& options, size_t first_router);

// All of them at once, begun at random within `spread`.
std::vector<Answer> ReadTogether(const std::vector<Request>& requests, const StreamOptions& options,
                                 std::chrono::milliseconds spread, uint64_t seed);

}  // namespace winnow::chaos
