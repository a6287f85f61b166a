#include "router/generation/text_generation.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <random>
#include <utility>

#include "common/selection/indexer_spec.h"
#include "common/selection/window_layers.h"
#include "router/generation/output_text.h"
#include "router/generation/request_span.h"
#include "router/generation/resume_token.h"
#include "router/tasks/strand.h"

namespace winnow {
namespace {

// One generation. Streams call in from several threads; what they say is handled on the strand. Streams may be
// destroyed there, inside what may be one of their own callbacks: another stream's callback never waits for more than
// the strand's queue.
class RunningGeneration : public std::enable_shared_from_this<RunningGeneration> {
 public:
  // What a generation and its forks use; all must outlive them.
  struct Tools {
    TokenGenerator* generator;
    TimerQueue* timers;
    RequestMetrics* metrics;  // may be null
    std::function<OutputText()> new_text;
    std::function<void(const RequestRecord&)> on_end;  // may be absent
    RequestTracing tracing;
  };

  RunningGeneration(GenerationObserver* observer, Tools tools, TokenRequest request, std::string request_id)
      : observer_(observer), tools_(std::move(tools)), request_(std::move(request)) {
    usage_.prompt_tokens = static_cast<uint32_t>(request_.prompt_token_ids.size());
    record_.request_id = std::move(request_id);
  }

  // Before Start: the generation can be resumed with this token, or is, from these tokens of each output on.
  void MakeResumable(v1::ResumeToken token, const std::optional<GenerationInput::Resume>& resume) {
    token_ = std::move(token);
    if (resume) known_tokens_ = resume->next_index;
    known_tokens_.resize(token_->outputs());
    is_resumed_ = resume.has_value();
  }

  // Before Start: it is in a trace.
  void MakeTraced(const TraceContext& context, uint64_t parent_span_id, RequestSpan::Description description) {
    span_.emplace(tools_.tracing, context, parent_span_id, std::move(description), request_);
    record_.trace_id = TraceIdText(context);
  }

  std::string resume_token() const { return token_ ? EncodeResumeToken(*token_) : std::string(); }

  // Outputs have the sample indices from `first_sample` on. On an error no callback has run.
  absl::Status Start(uint32_t n, uint32_t first_sample) {
    outputs_.reserve(n);
    for (uint32_t i = 0; i < n; ++i) {
      outputs_.push_back(std::make_unique<Output>(this, i, tools_.new_text()));
      if (request_.fork) outputs_.back()->Begin(request_.fork->token_ids);
    }
    open_outputs_ = n;
    next_sample_ = first_sample + n;
    for (const auto& output : outputs_) {
      TokenRequest request = request_;
      request.sampling.set_sample_index(first_sample + output->index);
      if (output->index > 0) {
        request.prompt_progress = false;
        request.prompt_top_logprobs.reset();
      }
      if (token_) MakeResumable(output->index, &request);
      if (span_) request.spans = output->spans = span_->AddOutput();
      absl::StatusOr<std::unique_ptr<TokenStream>> stream = tools_.generator->Start(std::move(request), output.get());
      if (!stream.ok()) {
        record_.ended = absl::StatusCodeToString(stream.status().code());
        Cancel();
        return stream.status();
      }
      std::lock_guard lock(progress_mutex_);
      output->stream = *std::move(stream);
    }
    if (token_ && !is_resumed_) NoteRankInToken();
    if (tools_.metrics) {
      for (const auto& output : outputs_) output->timer.emplace(tools_.metrics, arrival_);
    }
    if (strand_.Resume()) {
      tools_.timers->After({}, [self = shared_from_this()] { self->strand_.Drain(); });
    }
    return absl::OkStatus();
  }

  // Any thread; see GenerationHandle.
  absl::StatusOr<std::pair<std::shared_ptr<RunningGeneration>, TokenRequest>> Fork(const ForkInput& input,
                                                                                   GenerationObserver* observer) {
    if (input.output_index >= outputs_.size()) {
      return absl::NotFoundError(
          absl::StrCat("output_index: ", input.output_index, ", but there are ", outputs_.size(), " outputs"));
    }
    if (input.caller.tenant != request_.tenant) {
      return absl::NotFoundError("source_request_id: no such request of this tenant");
    }
    TokenRequest request = request_;
    uint32_t sample = 0;
    {
      std::lock_guard lock(progress_mutex_);
      const Output& output = *outputs_[input.output_index];
      if (output.stream == nullptr) {
        return absl::NotFoundError(absl::StrCat("output_index: output ", input.output_index, " is over"));
      }
      request.fork = TokenFork{.source = output.stream->fork_source().value_or(ForkSource()), .token_ids = output.ids};
      const size_t known = output.ids.size();
      const uint32_t most = request.stopping.max_tokens();
      const uint32_t max_tokens = input.max_tokens.value_or(most);
      if (max_tokens <= known || max_tokens > most) {
        return absl::InvalidArgumentError(
            absl::StrCat("max_tokens: ", max_tokens, "; the source has ", known, " tokens and may have ", most));
      }
      request.stopping.set_max_tokens(max_tokens);
      sample = input.sample_index.value_or(next_sample_);
      next_sample_ = std::max(next_sample_, sample + 1);
    }
    request.deadline = input.deadline;
    request.group = 0;
    request.group_size = 1;
    request.prompt_progress = false;
    request.prompt_top_logprobs.reset();
    auto fork = std::make_shared<RunningGeneration>(observer, tools_, request, record_.request_id + "/fork");
    if (span_) {
      RequestSpan::Description description = span_->description();
      description.request_id = fork->record_.request_id;
      description.outputs = 1;
      fork->MakeTraced(span_->context().Child(), span_->context().span_id, std::move(description));
    }
    WINNOW_RETURN_IF_ERROR(fork->Start(1, sample));
    return std::make_pair(std::move(fork), std::move(request));
  }

  // No callback runs after it returns, except the one it is called from.
  void Cancel(Leftovers leftovers = Leftovers::kFree) {
    strand_.Close();
    closed_ = true;
    for (const auto& output : outputs_) CloseOutput(*output, FinishedReason::kAbort, leftovers);
  }

 private:
  struct Output final : public TokenObserver {
    Output(RunningGeneration* o, uint32_t i, OutputText t) : owner(o), index(i), text(std::move(t)) {}

    void OnCachedPrompt(uint32_t cached) override {
      Post([cached](RunningGeneration& g, Output& o) {
        if (o.index == 0) g.usage_.cached_prompt_tokens = cached;
      });
    }
    void OnPromptProgress(uint32_t computed, uint32_t cached) override {
      Post([computed, cached](RunningGeneration& g, Output& o) {
        if (o.closed) return;
        g.observer_->OnPromptProgress(
            {.computed_tokens = computed, .cached_tokens = cached, .prompt_tokens = g.usage_.prompt_tokens});
      });
    }
    void OnPromptTokens(const std::vector<v1::Token>& tokens) override {
      Post([tokens](RunningGeneration& g, Output& o) {
        if (!o.closed) g.observer_->OnPromptTokens(tokens);
      });
    }
    void OnTokens(uint32_t first_index, const std::vector<v1::Token>& tokens) override {
      Post([first_index, tokens](RunningGeneration& g, Output& o) { g.OnTokens(o, first_index, tokens); });
    }
    void OnFinished(v1::FinishReason reason, const v1::SelectionStats& stats) override {
      Post([reason, stats](RunningGeneration& g, Output& o) { g.OnFinished(o, reason, stats); });
    }
    void OnFailed(const absl::Status& status) override {
      Post([status](RunningGeneration& g, Output& o) { g.OnFailed(o, status); });
    }
    template <typename Function>
    void Post(Function function) {
      owner->strand_.Post([self = owner->shared_from_this(), this, f = std::move(function)] { f(*self, *this); });
    }

    // What its text would have shown of these has been shown elsewhere.
    void Begin(const std::vector<uint32_t>& token_ids) {
      ids = token_ids;
      tokens = static_cast<uint32_t>(ids.size());
      std::vector<v1::Token> begun(ids.size());
      for (size_t i = 0; i < ids.size(); ++i) begun[i].set_id(ids[i]);
      text.Push(begun);
    }

    RunningGeneration* const owner;  // owns this
    const uint32_t index;
    OutputText text;
    std::optional<RequestTimer> timer;
    std::shared_ptr<OutputSpans> spans;  // may be null
    uint32_t tokens = 0;
    bool closed = false;
    // Guarded by progress_mutex_.
    std::vector<uint32_t> ids;  // so far
    std::unique_ptr<TokenStream> stream;
  };

  void MakeResumable(uint32_t output_index, TokenRequest* request) const {
    request->resume_key = ResumeKeyOf(*token_, output_index);
    if (!is_resumed_) return;
    request->resume = TokenResume{.inference = {token_->inference_rank(), token_->incarnation()},
                                  .next_index = known_tokens_[output_index]};
    // Siblings are where they were.
    request->group = 0;
    request->group_size = 1;
  }

  void NoteRankInToken() {
    std::lock_guard lock(progress_mutex_);
    const std::optional<ForkSource> place = outputs_.front()->stream->fork_source();
    if (!place) return;
    token_->set_inference_rank(place->inference.rank);
    token_->set_incarnation(place->inference.incarnation);
  }

  void OnTokens(Output& output, uint32_t first_index, const std::vector<v1::Token>& tokens) {
    const uint32_t known = is_resumed_ ? known_tokens_[output.index] : 0;
    if (known <= first_index || known - first_index >= tokens.size()) return TakeTokens(output, first_index, tokens);
    const auto middle = tokens.begin() + (known - first_index);
    TakeTokens(output, first_index, {tokens.begin(), middle});
    TakeTokens(output, known, {middle, tokens.end()});
  }

  void TakeTokens(Output& output, uint32_t first_index, const std::vector<v1::Token>& tokens) {
    if (output.closed) return;
    if (!record_.first_token && !tokens.empty()) {
      record_.first_token = RequestTimer::Clock::now() - arrival_;
      NoteRanks(*outputs_.front());
    }
    if (output.spans && output.tokens == 0 && !tokens.empty()) {
      output.spans->NoteFirstToken(usage_.cached_prompt_tokens);
    }
    OutputText::Piece piece = output.text.Push(tokens);
    output.tokens += piece.tokens;
    usage_.completion_tokens += piece.tokens;
    if (output.timer) output.timer->OnTokens(piece.tokens);
    TextDelta delta{
        .output_index = output.index, .first_index = first_index, .tokens = {}, .text = std::move(piece.text)};
    delta.tokens.assign(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(piece.tokens));
    {
      std::lock_guard lock(progress_mutex_);
      for (const v1::Token& token : delta.tokens) output.ids.push_back(token.id());
    }
    // Whoever resumes it finds the same stop.
    if (piece.stop_match) CloseOutput(output, FinishedReason::kStop, Leftovers::kKeepTokens);
    observer_->OnDelta(delta);
    if (piece.stop_match) ReportEnd(output, v1::FINISH_REASON_STOP, std::move(piece.stop_match), std::nullopt);
  }

  void OnFinished(Output& output, v1::FinishReason reason, const v1::SelectionStats& stats) {
    if (output.closed) return;
    OutputText::Piece piece = output.text.Finish();
    if (piece.stop_match) reason = v1::FINISH_REASON_STOP;
    CloseOutput(output, reason == v1::FINISH_REASON_LENGTH ? FinishedReason::kLength : FinishedReason::kStop);
    if (!piece.text.empty()) {
      observer_->OnDelta(
          {.output_index = output.index, .first_index = output.tokens, .tokens = {}, .text = piece.text});
    }
    ReportEnd(output, reason, std::move(piece.stop_match), stats);
  }

  void OnFailed(Output& output, const absl::Status& status) {
    if (output.closed) return;
    record_.ended = absl::StatusCodeToString(status.code());
    // The client may resume it: where this router stops, or because it has done so already.
    for (const auto& each : outputs_) CloseOutput(*each, FinishedReason::kError, Leftovers::kKeepComputing);
    observer_->OnFailed(status);
  }

  // The observer may have destroyed the handle in its last callback: then there are no more.
  void ReportEnd(const Output& output, v1::FinishReason reason, std::optional<std::string> stop_match,
                 const std::optional<v1::SelectionStats>& stats) {
    if (closed_) return;
    const bool is_last = --open_outputs_ == 0;
    observer_->OnOutputEnd({output.index, reason, std::move(stop_match), stats});
    if (is_last && !closed_) observer_->OnDone(usage_);
  }

  void CloseOutput(Output& output, FinishedReason reason, Leftovers leftovers = Leftovers::kFree) {
    if (std::exchange(output.closed, true)) return;
    if (output.timer) output.timer->OnEnd(reason);
    if (output.index == 0) NoteRanks(output);
    if (output.spans) output.spans->End();
    {
      std::unique_ptr<TokenStream> stream;  // destroyed without the lock
      std::lock_guard lock(progress_mutex_);
      stream = std::move(output.stream);
      if (stream != nullptr) stream->SetLeftovers(leftovers);
    }
    if (span_) span_->AddFinishReason(std::string(FinishReasonName(reason)));
    if (++closed_outputs_ == outputs_.size()) Record(reason);
  }

  // As OpenTelemetry names them.
  static std::string_view FinishReasonName(FinishedReason reason) {
    if (reason == FinishedReason::kStop) return "stop";
    return reason == FinishedReason::kLength ? "length" : "error";
  }

  // Where an output is now; after a failover or a hand-over, that is another inference rank.
  void NoteRanks(const Output& output) {
    if (!tools_.on_end && !span_) return;
    std::lock_guard lock(progress_mutex_);
    const std::optional<ForkSource> place = output.stream ? output.stream->fork_source() : std::nullopt;
    if (!place) return;
    const auto note = [this](const RankKey& rank) {
      if (std::find(record_.ranks.begin(), record_.ranks.end(), rank.rank) == record_.ranks.end()) {
        record_.ranks.push_back(rank.rank);
      }
    };
    note(place->inference);
    for (const RankKey& cache : place->caches) note(cache);
  }

  // With the reason that the last of its outputs has ended for.
  void Record(FinishedReason reason) {
    if (!tools_.on_end && !span_) return;
    record_.prompt_tokens = usage_.prompt_tokens;
    record_.cached_prompt_tokens = usage_.cached_prompt_tokens;
    record_.completion_tokens = usage_.completion_tokens;
    record_.outputs = static_cast<uint32_t>(outputs_.size());
    record_.duration = RequestTimer::Clock::now() - arrival_;
    if (record_.ended.empty()) {
      constexpr const char* kReasons[] = {"stop", "length", "abort", "error"};  // in the order of FinishedReason
      record_.ended = kReasons[static_cast<size_t>(reason)];
    }
    if (span_) span_->End(record_);
    if (tools_.on_end) tools_.on_end(record_);
  }

  GenerationObserver* const observer_;
  const Tools tools_;
  const TokenRequest request_;  // of an output, but for its sample index
  Strand strand_{Strand::Start::kHeld};
  // Constant after Start.
  std::optional<v1::ResumeToken> token_;
  bool is_resumed_ = false;
  std::vector<uint32_t> known_tokens_;  // of each output, that its client has

  // Touched on the strand, by Start before it is released, and by Cancel after it is closed.
  bool closed_ = false;
  std::vector<std::unique_ptr<Output>> outputs_;
  uint32_t open_outputs_ = 0;
  size_t closed_outputs_ = 0;
  GenerationUsage usage_;
  const RequestTimer::Clock::time_point arrival_ = RequestTimer::Clock::now();
  RequestRecord record_;
  std::optional<RequestSpan> span_;  // of a request that is in a trace

  std::mutex progress_mutex_;  // what forks begin with
  uint32_t next_sample_ = 0;   // guarded by progress_mutex_, after Start
};

class Handle final : public GenerationHandle {
 public:
  explicit Handle(std::shared_ptr<RunningGeneration> generation) : generation_(std::move(generation)) {}
  ~Handle() override { generation_->Cancel(leftovers_); }

  std::string resume_token() const override { return generation_->resume_token(); }
  void Leave() override { leftovers_ = Leftovers::kKeepComputing; }

  absl::StatusOr<GenerationFork> Fork(const ForkInput& input, GenerationObserver* observer) override {
    WINNOW_ASSIGN_OR_RETURN(auto started, generation_->Fork(input, observer));
    const TokenRequest& request = started.second;
    return GenerationFork{.handle = std::make_unique<Handle>(std::move(started.first)),
                          .prompt_tokens = static_cast<uint32_t>(request.prompt_token_ids.size()),
                          .forked_tokens = static_cast<uint32_t>(request.fork->token_ids.size()),
                          .selection = request.selection};
  }

 private:
  const std::shared_ptr<RunningGeneration> generation_;
  Leftovers leftovers_ = Leftovers::kFree;
};

uint64_t RandomSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

TextGeneration::TextGeneration(TextGenerationOptions options, TokenGenerator* generator,
                               const TextDecoderFactory* decoders, TimerQueue* timers)
    : options_(std::move(options)), generator_(generator), decoders_(decoders), timers_(timers) {}

absl::StatusOr<std::unique_ptr<GenerationHandle>> TextGeneration::Start(GenerationInput input,
                                                                        GenerationObserver* observer) {
  std::optional<v1::ResumeToken> token;
  if (input.resume) {
    WINNOW_ASSIGN_OR_RETURN(token, DecodeResumeToken(input.resume->token));
    WINNOW_RETURN_IF_ERROR(
        CheckResumeToken(*token, options_.cluster, input.caller.tenant, std::chrono::system_clock::now()));
    WINNOW_RETURN_IF_ERROR(CheckResumesRequest(*token, input));
    input.sampling.set_seed(token->seed());
  }
  if (!input.sampling.has_seed()) input.sampling.set_seed(RandomSeed());
  if (input.resumable && !token) token = NewResumeToken(options_.cluster, input);
  const std::optional<GenerationInput::Resume> resume = std::move(input.resume);

  const auto prompt_tokens = static_cast<uint32_t>(input.prompt_token_ids.size());
  std::set<uint32_t> ends(input.stop_token_ids.begin(), input.stop_token_ids.end());
  if (!input.ignore_eos) ends.insert(options_.eos_token_ids.begin(), options_.eos_token_ids.end());

  const uint32_t first_sample = input.sampling.sample_index();
  TokenRequest request{.prompt_token_ids = std::move(input.prompt_token_ids),
                       .tenant = input.caller.tenant,
                       .tenant_weight = input.caller.weight,
                       .sampling = std::move(input.sampling),
                       .stopping = {},
                       .selection = std::move(input.selection),
                       .top_logprobs = input.top_logprobs,
                       .deadline = input.deadline,
                       .group = input.n > 1 ? next_group_.fetch_add(1) : 0,
                       .group_size = input.n,
                       .priority = input.priority,
                       .trace_parts = input.trace_parts,
                       .skip_prefix_cache = input.skip_prefix_cache,
                       .prompt_progress = input.prompt_progress,
                       .prompt_top_logprobs = input.prompt_top_logprobs};
  if (options_.head_profile != nullptr) {
    request.selection = WithHeadProfile(std::move(request.selection), *options_.head_profile);
  }
  request.selection = WithWindowLayers(std::move(request.selection), options_.windows, options_.num_kv_heads);
  request.selection = WithIndexer(std::move(request.selection), options_.index_top_k);
  request.stopping.set_max_tokens(input.max_tokens);
  request.stopping.set_ignore_eos(input.ignore_eos);
  request.stopping.mutable_stop_token_ids()->Assign(input.stop_token_ids.begin(), input.stop_token_ids.end());

  RunningGeneration::Tools tools{.generator = generator_,
                                 .timers = timers_,
                                 .metrics = options_.metrics,
                                 .new_text = {},
                                 .on_end = options_.on_end,
                                 .tracing = options_.tracing};
  TextStop stop{.strings = std::move(input.stop),
                .silent_ids = input.include_stop ? std::set<uint32_t>() : std::move(ends),
                .include = input.include_stop};
  tools.new_text = [decoders = decoders_, decoding = std::move(input.decoding), stop = std::move(stop)] {
    return OutputText(decoders->NewDecoder(decoding), stop);
  };
  const std::optional<TraceContext> trace = options_.tracing.Begin(input.trace_parent);
  auto generation =
      std::make_shared<RunningGeneration>(observer, std::move(tools), std::move(request), input.request_id);
  if (trace) {
    generation->MakeTraced(*trace, input.trace_parent ? input.trace_parent->span_id : 0,
                           {.operation = std::string(input.operation),
                            .request_id = input.request_id,
                            .tenant = input.caller.account ? input.caller.tenant : "",
                            .outputs = input.n});
  }
  if (token) generation->MakeResumable(*std::move(token), resume);
  const absl::Status status = generation->Start(input.n, first_sample);
  if (options_.metrics) {
    if (status.ok()) {
      options_.metrics->OnAccepted(prompt_tokens);
    } else {
      options_.metrics->rejected.Increment();
    }
  }
  if (!status.ok()) return status;
  return std::make_unique<Handle>(std::move(generation));
}

absl::Status TextGeneration::Abort(const std::string& resume_token, const Caller& caller) {
  WINNOW_ASSIGN_OR_RETURN(const v1::ResumeToken token, DecodeResumeToken(resume_token));
  WINNOW_RETURN_IF_ERROR(CheckResumeToken(token, options_.cluster, caller.tenant, std::chrono::system_clock::now()));
  for (uint32_t i = 0; i < token.outputs(); ++i) generator_->Free(ResumeKeyOf(token, i), caller.tenant);
  return absl::OkStatus();
}

}  // namespace winnow
