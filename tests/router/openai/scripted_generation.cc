#include "tests/router/openai/scripted_generation.h"

#include <utility>

namespace winnow {

class ScriptedGeneration::Run::Handle : public GenerationHandle {
 public:
  explicit Handle(std::shared_ptr<Run> run) : run_(std::move(run)) {}
  ~Handle() override {
    {
      std::lock_guard calling(run_->calling_);
      run_->observer_ = nullptr;
    }
    std::lock_guard lock(run_->mutex_);
    run_->destroyed_ = true;
    run_->changed_.notify_all();
  }

 private:
  const std::shared_ptr<Run> run_;
};

void ScriptedGeneration::Run::Call(const std::function<void(GenerationObserver*)>& call) {
  std::lock_guard calling(calling_);
  if (observer_ != nullptr) call(observer_);
}

void ScriptedGeneration::Run::ScorePrompt() {
  std::vector<v1::Token> tokens;
  for (size_t i = 1; i < input_.prompt_token_ids.size(); ++i) {
    v1::Token& token = tokens.emplace_back();
    token.set_id(input_.prompt_token_ids[i]);
    token.set_logprob(-static_cast<float>(i));
    token.set_rank(2);
    token.add_top_logprobs()->set_id('e');
    token.mutable_top_logprobs(0)->set_logprob(-0.5f);
  }
  Call([&](GenerationObserver* observer) { observer->OnPromptTokens(tokens); });
}

void ScriptedGeneration::Run::PromptAt(uint32_t computed_tokens, uint32_t cached_tokens) {
  const PromptProgress progress{.computed_tokens = computed_tokens,
                                .cached_tokens = cached_tokens,
                                .prompt_tokens = static_cast<uint32_t>(input_.prompt_token_ids.size())};
  Call([&](GenerationObserver* observer) { observer->OnPromptProgress(progress); });
}

void ScriptedGeneration::Run::Delta(uint32_t output, const std::string& text) {
  std::vector<v1::Token> tokens;
  for (const char c : text) tokens.emplace_back().set_id(static_cast<unsigned char>(c));
  Delta(output, std::move(tokens), text);
}

void ScriptedGeneration::Run::Delta(uint32_t output, std::vector<v1::Token> tokens, const std::string& text) {
  const uint32_t count = static_cast<uint32_t>(tokens.size());
  const TextDelta delta{
      .output_index = output, .first_index = next_index_.at(output), .tokens = std::move(tokens), .text = text};
  next_index_.at(output) += count;
  tokens_ += count;
  Call([&](GenerationObserver* observer) { observer->OnDelta(delta); });
}

void ScriptedGeneration::Run::End(uint32_t output, v1::FinishReason reason, std::optional<std::string> stop_match,
                                  v1::SelectionStats stats) {
  const OutputEnd end{
      .output_index = output, .reason = reason, .stop_match = std::move(stop_match), .stats = std::move(stats)};
  Call([&](GenerationObserver* observer) { observer->OnOutputEnd(end); });
}

void ScriptedGeneration::Run::Done() {
  const GenerationUsage usage{.prompt_tokens = static_cast<uint32_t>(input_.prompt_token_ids.size()),
                              .completion_tokens = tokens_};
  Call([&](GenerationObserver* observer) { observer->OnDone(usage); });
}

void ScriptedGeneration::Run::Fail(const absl::Status& status) {
  Call([&](GenerationObserver* observer) { observer->OnFailed(status); });
}

void ScriptedGeneration::Run::WaitForDestruction() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return destroyed_; });
}

bool ScriptedGeneration::Run::destroyed() {
  std::lock_guard lock(mutex_);
  return destroyed_;
}

absl::StatusOr<std::unique_ptr<GenerationHandle>> ScriptedGeneration::Start(GenerationInput input,
                                                                            GenerationObserver* observer) {
  std::lock_guard lock(mutex_);
  if (!refuse_with_.ok()) return refuse_with_;
  auto run = std::make_shared<Run>();
  run->next_index_.resize(input.n);
  run->input_ = std::move(input);
  run->observer_ = observer;
  runs_.push_back(run);
  changed_.notify_all();
  return std::make_unique<Run::Handle>(std::move(run));
}

void ScriptedGeneration::RefuseWith(absl::Status status) {
  std::lock_guard lock(mutex_);
  refuse_with_ = std::move(status);
}

std::shared_ptr<ScriptedGeneration::Run> ScriptedGeneration::WaitForStart(size_t n) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return runs_.size() > n; });
  return runs_[n];
}

}  // namespace winnow
