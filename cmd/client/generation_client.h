#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "clients/cpp/client.h"
#include "common/base/status.h"
#include "common/rpc/credentials.h"
#include "winnow/v1/generation.pb.h"

namespace winnow {

// What became of a request.
struct GenerationResult {
  std::string text;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  v1::GenerateResponse::Usage usage;
  std::string specification;  // of the selection in force
  v1::SelectionStats selection;
  uint32_t tokens = 0;
  std::chrono::duration<double> time_to_first_token{};
  std::chrono::duration<double> time_after_first_token{};

  double SecondsPerToken() const { return tokens > 1 ? time_after_first_token.count() / (tokens - 1) : 0; }
};

// What the command line adds to a client: Ctrl-C, and times.
class GenerationClient {
 public:
  // `api_key`, where there is one, goes along as a bearer token.
  explicit GenerationClient(const std::string& address, std::string api_key = "", const Credentials& credentials = {});

  using OnPrompt = std::function<void(const v1::GenerateResponse::PromptProgress&)>;
  // Runs one request to its end; `on_text` gets the text as it comes (output 0), and `on_prompt`, if there is one,
  // hears before that how far the prompt is. Ctrl-C cancels it: CANCELLED. UNAVAILABLE says that no server is there.
  // Call it from one thread at a time, with SIGINT and SIGTERM blocked in all threads (BlockStopSignals).
  absl::StatusOr<GenerationResult> Generate(const v1::GenerateRequest& request,
                                            const std::function<void(std::string_view)>& on_text,
                                            const OnPrompt& on_prompt = nullptr);

 private:
  const Client client_;
};

// "captured mass 0.934 (5th percentile 0.861), 2116 of 4012 rows resident, ...": one line per figure, each indented by
// two.
std::string DescribeStats(const GenerationResult& result);

}  // namespace winnow
