#include "router/openai/generation_session.h"

#include <utility>

#include "absl/strings/match.h"
#include "common/selection/spec_text.h"
#include "router/openai/json/api_error.h"

namespace winnow {
namespace {

using Stage = ChoicePosition::Stage;

constexpr int kClientClosedRequest = 499;  // as CANCELLED of ToApiError

std::string_view EndpointLabel(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kChatCompletions:
      return "chat_completions";
    case Endpoint::kResponses:
      return "responses";
    default:
      return "completions";
  }
}

// Of the headers `traceparent` and `tracestate`. The second may come in pieces, the first may not.
std::optional<TraceContext> TraceParentOf(const HttpRequest& request) {
  const std::string* parent = nullptr;
  std::string state;
  for (const HttpHeader& header : request.headers) {
    if (absl::EqualsIgnoreCase(header.name, "traceparent")) {
      if (parent != nullptr) return std::nullopt;
      parent = &header.value;
    } else if (absl::EqualsIgnoreCase(header.name, "tracestate")) {
      if (!state.empty()) state += ',';
      state += header.value;
    }
  }
  return parent == nullptr ? std::nullopt : ParseTraceContext(*parent, state);
}

}  // namespace

class GenerationSession::PromptObserver : public GenerationObserver {
 public:
  PromptObserver(GenerationSession* session, uint32_t prompt_index) : session_(*session), prompt_index_(prompt_index) {}

  void OnPromptProgress(const PromptProgress& progress) override { session_.Enqueue(prompt_index_, progress); }
  void OnPromptTokens(const std::vector<v1::Token>& tokens) override { session_.Enqueue(prompt_index_, tokens); }
  void OnDelta(const TextDelta& delta) override { session_.Enqueue(prompt_index_, delta); }
  void OnOutputEnd(const OutputEnd& end) override { session_.Enqueue(prompt_index_, end); }
  void OnDone(const GenerationUsage& usage) override { session_.Enqueue(prompt_index_, usage); }
  void OnFailed(const absl::Status& status) override { session_.Enqueue(prompt_index_, status); }

 private:
  GenerationSession& session_;
  const uint32_t prompt_index_;
};

GenerationSession::GenerationSession(std::shared_ptr<HttpExchange> exchange, Config config)
    : exchange_(std::move(exchange)),
      request_(std::move(config.request)),
      caller_(std::move(config.caller)),
      format_(std::move(config.format)),
      deadline_(config.deadline),
      hooks_(*config.hooks),
      resume_token_(std::move(config.resume_token)),
      keep_alive_(config.keep_alive),
      sse_(exchange_),
      last_sent_(Clock::now()),
      choices_(request_.prompts.size() * request_.fields.n) {
  usage_.SetSelection(SpecText(request_.fields.selection));
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    if (i < config.client_has.size()) choice.client_has = config.client_has[i];
    if (!request_.fields.stream) choice.result.message.content = request_.prompts[i / request_.fields.n].echo;
    choice.parser = MakeMessageParser(request_.parsing, [this] { return NewToolCallId(request_.parsing.tools); });
  }
}

GenerationSession::~GenerationSession() = default;

// Those that the client wants, together or apart.
std::optional<uint32_t> GenerationSession::PromptTopLogprobs() const {
  std::optional<uint32_t> top = request_.prompt_logprobs;
  if (request_.echoes_logprobs) top = std::max(top.value_or(0), *request_.top_logprobs);
  return top;
}

void GenerationSession::Start(Generation* generation) {
  exchange_->OnClose([self = shared_from_this()](CloseReason) { self->Release("cancelled", kClientClosedRequest); });
  const CommonFields& fields = request_.fields;
  for (uint32_t i = 0; i < request_.prompts.size(); ++i) {
    const GenerationRequest::Prompt& prompt = request_.prompts[i];
    GenerationInput input;
    input.request_id = exchange_->request().request_id;
    if (request_.prompts.size() > 1) absl::StrAppend(&input.request_id, "-", i);
    input.prompt_token_ids = prompt.token_ids;
    input.caller = caller_;
    input.n = fields.n;
    input.sampling = fields.sampling;
    input.max_tokens = prompt.max_tokens;
    input.stop = fields.stop;
    input.stop_token_ids = fields.stop_token_ids;
    input.ignore_eos = fields.ignore_eos;
    input.decoding = {.skip_special_tokens = fields.skip_special_tokens, .shown_special = request_.shown_special};
    input.include_stop = fields.include_stop;
    input.top_logprobs = request_.top_logprobs;
    input.selection = fields.selection;
    input.priority = fields.priority;
    input.trace_parts = fields.trace_parts;
    input.skip_prefix_cache = fields.skip_prefix_cache;
    input.prompt_progress = fields.prompt_progress;
    input.prompt_top_logprobs = PromptTopLogprobs();
    // Nothing stands before a prompt's first token.
    if (input.prompt_top_logprobs) prompt_tokens_.emplace_back(1).front().set_id(prompt.token_ids.front());
    input.deadline = deadline_;
    input.trace_parent = TraceParentOf(exchange_->request());
    if (request_.endpoint != Endpoint::kCompletions) input.operation = "chat";
    input.resumable = fields.resumable;
    if (resume_token_) {
      input.resume.emplace().token = *resume_token_;
      for (const Choice& choice : choices_) input.resume->next_index.push_back(choice.client_has.tokens);
    }
    observers_.push_back(std::make_unique<PromptObserver>(this, i));
    absl::StatusOr<std::unique_ptr<GenerationHandle>> handle =
        generation->Start(std::move(input), observers_.back().get());
    if (!handle.ok()) return Fail(handle.status());
    handles_.push_back(*std::move(handle));
  }
  if (!fields.resumable) return;
  // At once: a client that loses its connection before the first event resumes, too.
  sse_.AddHeader({"Winnow-Resume", handles_.front()->resume_token()});
  sse_.Start();
}

void GenerationSession::Enqueue(uint32_t prompt_index, Event event) {
  {
    std::lock_guard lock(mutex_);
    events_.push_back({prompt_index, Clock::now(), std::move(event)});
    if (drain_posted_) return;
    drain_posted_ = true;
  }
  // Null while the session is being destroyed: its handles wait for this callback to return.
  if (auto self = weak_from_this().lock()) exchange_->Post([self = std::move(self)] { self->Drain(); });
}

void GenerationSession::Drain() {
  std::vector<QueuedEvent> events;
  {
    std::lock_guard lock(mutex_);
    events.swap(events_);
    drain_posted_ = false;
  }
  for (QueuedEvent& queued : events) {
    if (released_) return;
    std::visit([&](auto& event) { Handle(queued.prompt_index, queued.at, event); }, queued.event);
  }
}

void GenerationSession::Handle(uint32_t prompt_index, Clock::time_point, PromptProgress& progress) {
  Send(format_->PromptChunk(prompt_index, progress));
}

void GenerationSession::Handle(uint32_t prompt_index, Clock::time_point, PromptTokens& tokens) {
  PromptTokens& all = prompt_tokens_.at(prompt_index);
  std::move(tokens.begin(), tokens.end(), std::back_inserter(all));
}

void GenerationSession::Handle(uint32_t prompt_index, Clock::time_point at, TextDelta& delta) {
  if (request_.drops_answer) return;
  const uint32_t index = prompt_index * request_.fields.n + delta.output_index;
  Choice& choice = choices_.at(index);
  // Text without tokens is what their end has set free: in a resumable stream one event tells of it.
  if (delta.tokens.empty() && request_.fields.resumable) {
    return choice.parser->Push(delta.text, &choice.rest.message);
  }
  choice.tokens += static_cast<uint32_t>(delta.tokens.size());
  if (choice.tokens > choice.client_has.tokens) ObserveLatency(&choice, at, delta.tokens.size());
  ChoiceDelta said{.message = {}, .tokens = std::move(delta.tokens)};
  choice.parser->Push(delta.text, &said.message);
  // What the parser holds back counts with what it turns out to be part of.
  if (!said.message.reasoning.empty() && said.message.content.empty()) {
    usage_.AddReasoning(static_cast<uint32_t>(said.tokens.size()));
  }
  Deliver(index, std::move(said));
}

void GenerationSession::Handle(uint32_t prompt_index, Clock::time_point, OutputEnd& end) {
  const uint32_t index = prompt_index * request_.fields.n + end.output_index;
  Choice& choice = choices_.at(index);
  if (end.stats) usage_.Add(*end.stats);
  choice.parser->Finish(&choice.rest.message);
  if (!choice.rest.message.empty()) Deliver(index, std::move(choice.rest), Stage::kRest);
  ChoiceEnd how{.reason = end.reason, .stop_match = std::move(end.stop_match), .called_tools = choice.called_tools};
  if (request_.drops_answer) how = {.reason = v1::FINISH_REASON_LENGTH};
  if (!request_.fields.stream) {
    choice.result.end = std::move(how);
    return;
  }
  SendFirstChunk(index);
  SendOf(index, {.tokens = choice.tokens, .stage = Stage::kEnded}, format_->EndChunk(index, how, UsageOf(index)));
}

void GenerationSession::Deliver(uint32_t index, ChoiceDelta delta, Stage stage) {
  Choice& choice = choices_[index];
  choice.called_tools = choice.called_tools || !delta.message.tool_calls.empty();
  const bool tokens_wanted =
      request_.top_logprobs || request_.fields.return_token_ids || request_.fields.trace_parts > 0;
  if (!request_.fields.stream) {
    choice.result.message.Append(std::move(delta.message));
    if (tokens_wanted) {
      std::move(delta.tokens.begin(), delta.tokens.end(), std::back_inserter(choice.result.tokens));
    }
    return;
  }
  SendFirstChunk(index);
  const bool says_something = !delta.message.empty() || (tokens_wanted && !delta.tokens.empty());
  if (says_something) {
    SendOf(index, {.tokens = choice.tokens, .stage = stage},
           format_->DeltaChunk(index, delta, UsageOf(index), &choice.text_offset));
  }
}

std::optional<ChunkUsage> GenerationSession::UsageOf(uint32_t index) const {
  if (!request_.fields.continuous_usage_stats) return std::nullopt;
  const GenerationRequest::Prompt& prompt = request_.prompts[index / request_.fields.n];
  return ChunkUsage{.prompt_tokens = static_cast<uint32_t>(prompt.token_ids.size()),
                    .completion_tokens = choices_[index].tokens};
}

void GenerationSession::Handle(uint32_t, Clock::time_point, GenerationUsage& usage) {
  if (request_.drops_answer) usage.completion_tokens = 0;
  usage_.Add(usage);
  if (++prompts_done_ == request_.prompts.size()) Complete();
}

void GenerationSession::Handle(uint32_t, Clock::time_point, absl::Status& status) {
  Fail(status);
}

void GenerationSession::ObserveLatency(Choice* choice, Clock::time_point at, size_t tokens) {
  if (tokens == 0) return;
  if (!choice->has_token) {
    choice->has_token = true;
    if (hooks_.on_time_to_first_token) {
      hooks_.on_time_to_first_token(std::chrono::duration<double>(at - exchange_->request().received_at).count());
    }
  } else if (hooks_.on_inter_token_latency) {
    hooks_.on_inter_token_latency(std::chrono::duration<double>(at - choice->last_token_at).count());
  }
  // Further tokens of the same delta came with the first.
  for (size_t i = 1; i < tokens && hooks_.on_inter_token_latency; ++i) hooks_.on_inter_token_latency(0);
  choice->last_token_at = at;
}

void GenerationSession::SendFirstChunk(uint32_t index) {
  if (std::exchange(choices_[index].first_sent, true)) return;
  SendOf(index, {.tokens = 0, .stage = Stage::kTokens}, format_->FirstChunk(index, UsageOf(index)));
  const std::string& echo = request_.prompts[index / request_.fields.n].echo;
  if (echo.empty() && !request_.echoes_logprobs) return;
  ChoiceDelta delta{.message = {.content = echo}, .tokens = {}};
  if (request_.echoes_logprobs) delta.prompt_tokens = prompt_tokens_[index / request_.fields.n];
  SendOf(index, {.tokens = 0, .stage = Stage::kTokens},
         format_->DeltaChunk(index, delta, UsageOf(index), &choices_[index].text_offset));
}

void GenerationSession::Send(const StreamEvents& events) {
  Write(events, "");
}

void GenerationSession::SendOf(uint32_t index, const ChoicePosition& position, const StreamEvents& events) {
  if (events.empty() || !request_.fields.resumable) return Write(events, "");
  Choice& choice = choices_[index];
  if (position <= choice.client_has) return;
  choice.client_has = position;
  std::vector<ChoicePosition> positions;
  for (const Choice& each : choices_) positions.push_back(each.client_has);
  Write(events, EventId(positions));
}

void GenerationSession::Write(const StreamEvents& events, const std::string& id) {
  for (const StreamEvent& event : events) {
    const bool is_last = &event == &events.back();
    // A client that lags too far behind ends the request; OnClose says so as well, but there is no need to go on until
    // then.
    if (!released_ && !sse_.Event(event.data, {.name = event.name, .id = is_last ? std::string_view(id) : ""})) {
      Release("cancelled", kClientClosedRequest);
    }
    last_sent_ = Clock::now();
  }
}

void GenerationSession::KeepAlive() {
  if (!request_.fields.stream || keep_alive_.count() == 0) return;
  exchange_->Post([self = shared_from_this()] {
    if (self->released_ || Clock::now() - self->last_sent_ < self->keep_alive_) return;
    if (!self->sse_.Comment("waiting")) return self->Release("cancelled", kClientClosedRequest);
    self->last_sent_ = Clock::now();
  });
}

void GenerationSession::Complete() {
  if (request_.fields.stream) {
    Send(format_->End(usage_));
    sse_.Finish();
  } else {
    std::vector<ChoiceResult> results;
    results.reserve(choices_.size());
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (!prompt_tokens_.empty()) choices_[i].result.prompt_tokens = prompt_tokens_[i / request_.fields.n];
      results.push_back(std::move(choices_[i].result));
    }
    exchange_->Respond({.status = 200, .body = format_->Whole(results, usage_)});
  }
  Release("stop", 200);
}

void GenerationSession::Fail(const absl::Status& status) {
  const ApiError error = ToApiError(status);
  if (sse_.started()) {
    Send(format_->Failure(error));
    sse_.Finish();
  } else {
    exchange_->Respond(ErrorResponse(status));
  }
  Release("error", error.http_status);
}

void GenerationSession::Release(std::string_view outcome, int http_status) {
  if (std::exchange(released_, true)) return;
  for (const auto& handle : handles_) handle->Leave();
  handles_.clear();
  if (hooks_.on_answer) hooks_.on_answer(http_status);
  if (hooks_.on_generation) {
    const std::chrono::duration<double> seconds = Clock::now() - exchange_->request().received_at;
    hooks_.on_generation(EndpointLabel(request_.endpoint), outcome, usage_.prompt_tokens(), usage_.completion_tokens(),
                         seconds.count());
  }
}

}  // namespace winnow
