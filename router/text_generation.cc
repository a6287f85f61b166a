#include "router/text_generation.h"

#include <optional>
#include <random>
#include <utility>

#include "router/output_text.h"
#include "router/strand.h"

namespace winnow {
namespace {

// One generation. Streams call in from several threads; what they say is handled on the strand. Streams may be
// destroyed there, inside what may be one of their own callbacks: another stream's callback never waits for more than
// the strand's queue.
class RunningGeneration : public std::enable_shared_from_this<RunningGeneration> {
 public:
  RunningGeneration(GenerationObserver* observer, RequestMetrics* metrics, uint32_t prompt_tokens)
      : observer_(observer), metrics_(metrics) {
    usage_.prompt_tokens = prompt_tokens;
  }

  // On an error no callback has run.
  absl::Status Start(TokenGenerator& generator, TimerQueue& timers, TokenRequest request, uint32_t n,
                     const std::function<OutputText()>& new_text) {
    const auto arrival = RequestTimer::Clock::now();
    outputs_.reserve(n);
    for (uint32_t i = 0; i < n; ++i) outputs_.push_back(std::make_unique<Output>(this, i, new_text()));
    open_outputs_ = n;
    for (const auto& output : outputs_) {
      request.sampling.set_sample_index(output->index);
      absl::StatusOr<std::unique_ptr<TokenStream>> stream = generator.Start(request, output.get());
      if (!stream.ok()) {
        Cancel();
        return stream.status();
      }
      output->stream = *std::move(stream);
    }
    if (metrics_) {
      for (const auto& output : outputs_) output->timer.emplace(metrics_, arrival);
    }
    if (strand_.Resume()) {
      timers.After({}, [self = shared_from_this()] { self->strand_.Drain(); });
    }
    return absl::OkStatus();
  }

  // No callback runs after it returns, except the one it is called from.
  void Cancel() {
    strand_.Close();
    closed_ = true;
    for (const auto& output : outputs_) CloseOutput(*output, FinishedReason::kAbort);
  }

 private:
  struct Output final : public TokenObserver {
    Output(RunningGeneration* o, uint32_t i, OutputText t) : owner(o), index(i), text(std::move(t)) {}

    void OnCachedPrompt(uint32_t cached) override {
      Post([cached](RunningGeneration& g, Output& o) {
        if (o.index == 0) g.usage_.cached_prompt_tokens = cached;
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

    RunningGeneration* const owner;  // owns this
    const uint32_t index;
    OutputText text;
    std::optional<RequestTimer> timer;
    uint32_t tokens = 0;
    bool closed = false;
    std::unique_ptr<TokenStream> stream;
  };

  void OnTokens(Output& output, uint32_t first_index, const std::vector<v1::Token>& tokens) {
    if (output.closed) return;
    OutputText::Piece piece = output.text.Push(tokens);
    output.tokens += piece.tokens;
    usage_.completion_tokens += piece.tokens;
    if (output.timer) output.timer->OnTokens(piece.tokens);
    TextDelta delta{
        .output_index = output.index, .first_index = first_index, .tokens = {}, .text = std::move(piece.text)};
    delta.tokens.assign(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(piece.tokens));
    if (piece.stop_match) CloseOutput(output, FinishedReason::kStop);
    observer_->OnDelta(delta);
    if (piece.stop_match) ReportEnd(output, v1::FINISH_REASON_STOP, std::move(piece.stop_match), {});
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
    for (const auto& each : outputs_) CloseOutput(*each, FinishedReason::kError);
    observer_->OnFailed(status);
  }

  // The observer may have destroyed the handle in its last callback: then there are no more.
  void ReportEnd(const Output& output, v1::FinishReason reason, std::optional<std::string> stop_match,
                 const v1::SelectionStats& stats) {
    if (closed_) return;
    const bool is_last = --open_outputs_ == 0;
    observer_->OnOutputEnd({output.index, reason, std::move(stop_match), stats});
    if (is_last && !closed_) observer_->OnDone(usage_);
  }

  void CloseOutput(Output& output, FinishedReason reason) {
    if (!std::exchange(output.closed, true) && output.timer) output.timer->OnEnd(reason);
    output.stream.reset();
  }

  GenerationObserver* const observer_;
  RequestMetrics* const metrics_;
  Strand strand_{Strand::Start::kHeld};

  // Touched on the strand, by Start before it is released, and by Cancel after it is closed.
  bool closed_ = false;
  std::vector<std::unique_ptr<Output>> outputs_;
  uint32_t open_outputs_ = 0;
  GenerationUsage usage_;
};

class Handle final : public GenerationHandle {
 public:
  explicit Handle(std::shared_ptr<RunningGeneration> generation) : generation_(std::move(generation)) {}
  ~Handle() override { generation_->Cancel(); }

 private:
  const std::shared_ptr<RunningGeneration> generation_;
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
  const auto prompt_tokens = static_cast<uint32_t>(input.prompt_token_ids.size());
  std::set<uint32_t> silent(input.stop_token_ids.begin(), input.stop_token_ids.end());
  if (!input.ignore_eos) silent.insert(options_.eos_token_ids.begin(), options_.eos_token_ids.end());

  TokenRequest request{.prompt_token_ids = std::move(input.prompt_token_ids),
                       .tenant = std::move(input.tenant),
                       .sampling = std::move(input.sampling),
                       .stopping = {},
                       .selection = std::move(input.selection),
                       .top_logprobs = input.top_logprobs,
                       .deadline = input.deadline,
                       .group = input.n > 1 ? next_group_.fetch_add(1) : 0,
                       .priority = input.priority};
  if (options_.head_profile != nullptr) {
    request.selection = WithHeadProfile(std::move(request.selection), *options_.head_profile);
  }
  if (!request.sampling.has_seed()) request.sampling.set_seed(RandomSeed());
  request.stopping.set_max_tokens(input.max_tokens);
  request.stopping.set_ignore_eos(input.ignore_eos);
  request.stopping.mutable_stop_token_ids()->Assign(input.stop_token_ids.begin(), input.stop_token_ids.end());

  auto generation = std::make_shared<RunningGeneration>(observer, options_.metrics, prompt_tokens);
  const absl::Status status = generation->Start(*generator_, *timers_, std::move(request), input.n, [&] {
    return OutputText(decoders_->NewDecoder(), input.stop, silent);
  });
  if (options_.metrics) {
    if (status.ok()) {
      options_.metrics->prompt_tokens.Increment(prompt_tokens);
    } else {
      options_.metrics->rejected.Increment();
    }
  }
  if (!status.ok()) return status;
  return std::make_unique<Handle>(std::move(generation));
}

}  // namespace winnow
