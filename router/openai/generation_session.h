#pragma once
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "router/generation/generation.h"
#include "router/http/http_exchange.h"
#include "router/http/sse_writer.h"
#include "router/openai/openai_hooks.h"
#include "router/openai/request/generation_request.h"
#include "router/openai/response/event_position.h"
#include "router/openai/response/response_format.h"
#include "router/openai/stream_keep_alive.h"

namespace winnow {

// One admitted request from its generations to its response, whole or streamed.
//
// Observer callbacks only queue what they are told; one task on the connection's thread takes all that has come and
// writes it, so that callbacks never wait for a client. When the exchange ends early, the handles are destroyed and
// that cancels downstream, or leaves a resumable request to whoever resumes it. It keeps itself alive until the
// exchange closes.
//
// Of an answer that is resumed everything is said again, to the formats and parsers, whose state it makes; events that
// the client has are not sent.
class GenerationSession : public StreamKeepAlive::Stream, public std::enable_shared_from_this<GenerationSession> {
 public:
  struct Config {
    GenerationRequest request;
    Caller caller;
    std::unique_ptr<ResponseFormat> format;
    std::chrono::system_clock::time_point deadline;
    const OpenAiHooks* hooks = nullptr;
    std::optional<std::string> resume_token = {};  // the client goes on with an answer,
    std::vector<ChoicePosition> client_has = {};   // of which it has so much
    std::chrono::milliseconds keep_alive{0};       // a stream that says nothing for so long sends a comment; 0: never
  };

  GenerationSession(std::shared_ptr<HttpExchange> exchange, Config config);
  ~GenerationSession() override;

  // Starts one generation per prompt; answers with the error when one is refused. On the connection's thread, once.
  void Start(Generation* generation);

  void KeepAlive() override;

 private:
  using Clock = std::chrono::steady_clock;
  using PromptTokens = std::vector<v1::Token>;  // with their log probabilities
  using Event = std::variant<PromptProgress, PromptTokens, TextDelta, OutputEnd, GenerationUsage, absl::Status>;
  struct QueuedEvent {
    uint32_t prompt_index = 0;
    Clock::time_point at;
    Event event;
  };
  class PromptObserver;
  struct Choice {
    std::unique_ptr<MessageParser> parser;
    ChoiceResult result;        // of a stream only what its chunks need
    size_t text_offset = 0;     // characters streamed
    uint32_t tokens = 0;        // so far
    ChoiceDelta rest;           // what its end has set free
    ChoicePosition client_has;  // in a resumable stream
    bool called_tools = false;
    bool first_sent = false;
    Clock::time_point last_token_at;
    bool has_token = false;
  };

  // How many most likely tokens are asked for at each place of the prompts.
  std::optional<uint32_t> PromptTopLogprobs() const;

  // Any thread.
  void Enqueue(uint32_t prompt_index, Event event);

  // The rest on the connection's thread.
  void Drain();
  void Handle(uint32_t prompt_index, Clock::time_point at, PromptProgress& progress);
  void Handle(uint32_t prompt_index, Clock::time_point at, PromptTokens& tokens);
  void Handle(uint32_t prompt_index, Clock::time_point at, TextDelta& delta);
  void Handle(uint32_t prompt_index, Clock::time_point at, OutputEnd& end);
  void Handle(uint32_t prompt_index, Clock::time_point at, GenerationUsage& usage);
  void Handle(uint32_t prompt_index, Clock::time_point at, absl::Status& status);
  void ObserveLatency(Choice* choice, Clock::time_point at, size_t tokens);
  // Tells the client what has become of a choice, or keeps it for the whole response.
  void Deliver(uint32_t index, ChoiceDelta delta, ChoicePosition::Stage stage = ChoicePosition::Stage::kTokens);
  void SendFirstChunk(uint32_t index);
  std::optional<ChunkUsage> UsageOf(uint32_t index) const;
  // Events of the stream's own, which a client that resumes gets again.
  void Send(const StreamEvents& events);
  // Events of a choice, which is at this position behind them; not to a client that is as far.
  void SendOf(uint32_t index, const ChoicePosition& position, const StreamEvents& events);
  // `id` is the last event's.
  void Write(const StreamEvents& events, const std::string& id);
  void Complete();
  void Fail(const absl::Status& status);
  // Destroys the handles, which cancels what is left; nothing is handled afterwards.
  void Release(std::string_view outcome, int http_status);

  // Constant after construction.
  const std::shared_ptr<HttpExchange> exchange_;
  const GenerationRequest request_;
  const Caller caller_;
  const std::unique_ptr<ResponseFormat> format_;
  const std::chrono::system_clock::time_point deadline_;
  const OpenAiHooks& hooks_;
  const std::optional<std::string> resume_token_;
  const std::chrono::milliseconds keep_alive_;

  std::mutex mutex_;
  std::vector<QueuedEvent> events_;  // guarded by mutex_
  bool drain_posted_ = false;        // guarded by mutex_

  // On the connection's thread.
  SseWriter sse_;
  Clock::time_point last_sent_;
  std::vector<PromptTokens> prompt_tokens_;  // by prompt, where their log probabilities are wanted
  std::vector<Choice> choices_;
  UsageTotals usage_;
  size_t prompts_done_ = 0;
  bool released_ = false;
  std::vector<std::unique_ptr<PromptObserver>> observers_;
  std::vector<std::unique_ptr<GenerationHandle>> handles_;  // last: destroyed before what callbacks use
};

}  // namespace winnow
