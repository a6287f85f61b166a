#include "router/generation/limited_generation.h"

#include <utility>

namespace winnow {
namespace {

using Clock = KeyAccount::Clock;

// Counts what the generation says, and gives up its place when it is over: before its observer hears of that, so that a
// client that begins its next request at once finds the place free.
class CountingObserver final : public GenerationObserver {
 public:
  // `known`: tokens of each output that have been counted before. `tells_progress`: the next observer wants to hear of
  // the prompt's progress, too.
  CountingObserver(KeyAccount::Place place, GenerationObserver* next, bool tells_progress,
                   std::vector<uint32_t> known = {})
      : place_(std::move(place)), next_(next), tells_progress_(tells_progress), known_(std::move(known)) {}

  void OnPromptProgress(const PromptProgress& progress) override {
    if (!std::exchange(has_begun_, true)) place_.CountBeginning(Clock::now() - admitted_, progress.cached_tokens);
    if (tells_progress_) next_->OnPromptProgress(progress);
  }
  void OnPromptTokens(const std::vector<v1::Token>& tokens) override { next_->OnPromptTokens(tokens); }
  void OnDelta(const TextDelta& delta) override {
    const bool is_known = delta.output_index < known_.size() && delta.first_index < known_[delta.output_index];
    if (!is_known) place_.CountAnswer(static_cast<uint32_t>(delta.tokens.size()), Clock::now());
    next_->OnDelta(delta);
  }
  void OnOutputEnd(const OutputEnd& end) override { next_->OnOutputEnd(end); }
  // The last calls: whoever is called may destroy this.
  void OnDone(const GenerationUsage& usage) override {
    place_ = {};
    next_->OnDone(usage);
  }
  void OnFailed(const absl::Status& status) override {
    place_ = {};
    next_->OnFailed(status);
  }

 private:
  KeyAccount::Place place_;
  GenerationObserver* const next_;
  const bool tells_progress_;
  const std::vector<uint32_t> known_;
  const Clock::time_point admitted_ = Clock::now();
  bool has_begun_ = false;
};

class LimitedHandle final : public GenerationHandle {
 public:
  LimitedHandle(std::unique_ptr<CountingObserver> observer, std::unique_ptr<GenerationHandle> inner,
                KeyAccount::Request request)
      : observer_(std::move(observer)), inner_(std::move(inner)), request_(request) {}

  absl::StatusOr<GenerationFork> Fork(const ForkInput& input, GenerationObserver* observer) override {
    if (input.caller.account == nullptr) return inner_->Fork(input, observer);
    KeyAccount::Request request = request_;
    request.samples = 1;
    request.answer_tokens = input.max_tokens.value_or(request.answer_tokens);
    WINNOW_ASSIGN_OR_RETURN(KeyAccount::Place place, input.caller.account->Admit(request, Clock::now()));
    auto counting = std::make_unique<CountingObserver>(std::move(place), observer, /*tells_progress=*/false);
    WINNOW_ASSIGN_OR_RETURN(GenerationFork fork, inner_->Fork(input, counting.get()));
    fork.handle = std::make_unique<LimitedHandle>(std::move(counting), std::move(fork.handle), request);
    return fork;
  }
  std::string resume_token() const override { return inner_->resume_token(); }
  void Leave() override { inner_->Leave(); }

 private:
  const std::unique_ptr<CountingObserver> observer_;  // outlives what calls it
  const std::unique_ptr<GenerationHandle> inner_;
  const KeyAccount::Request request_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GenerationHandle>> LimitedGeneration::Start(GenerationInput input,
                                                                           GenerationObserver* observer) {
  const std::shared_ptr<KeyAccount> account = input.caller.account;
  if (account == nullptr) return inner_->Start(std::move(input), observer);
  const KeyAccount::Request request{.samples = input.n,
                                    .prompt_tokens = static_cast<uint32_t>(input.prompt_token_ids.size()),
                                    .answer_tokens = input.max_tokens,
                                    .priority = input.priority};
  WINNOW_ASSIGN_OR_RETURN(KeyAccount::Place place, account->Admit(request, Clock::now()));
  auto counting = std::make_unique<CountingObserver>(std::move(place), observer, input.prompt_progress,
                                                     input.resume ? input.resume->next_index : std::vector<uint32_t>());
  // When a rank begins, its first word of the prompt says so. What is resumed has been counted when it began.
  if (!input.resume) input.prompt_progress = true;
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<GenerationHandle> inner, inner_->Start(std::move(input), counting.get()));
  return std::make_unique<LimitedHandle>(std::move(counting), std::move(inner), request);
}

}  // namespace winnow
