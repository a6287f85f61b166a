#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "router/generation/generation.h"

namespace winnow {

// A Generation whose every event the test says, from its own thread as a dispatcher would.
class ScriptedGeneration : public Generation {
 public:
  // One started generation.
  class Run {
   public:
    const GenerationInput& input() const { return input_; }

    // Log probabilities of the prompt's tokens from the second on: -1, -2 ...
    void ScorePrompt();
    void PromptAt(uint32_t computed_tokens, uint32_t cached_tokens);
    // Each token is one byte of `text`; a test that wants others gives them.
    void Delta(uint32_t output, const std::string& text);
    void Delta(uint32_t output, std::vector<v1::Token> tokens, const std::string& text);
    void End(uint32_t output, v1::FinishReason reason = v1::FINISH_REASON_STOP,
             std::optional<std::string> stop_match = {}, v1::SelectionStats stats = {});
    // All outputs must have ended. Counts the tokens itself.
    void Done();
    void Fail(const absl::Status& status);

    // Waits until the handle is destroyed: the request was cancelled, or is over and forgotten.
    void WaitForDestruction();
    bool destroyed();

   private:
    friend class ScriptedGeneration;
    class Handle;

    void Call(const std::function<void(GenerationObserver*)>& call);

    GenerationInput input_;
    std::recursive_mutex calling_;  // held while the observer is called, and by the handle's destructor
    GenerationObserver* observer_ = nullptr;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool destroyed_ = false;
    std::vector<uint32_t> next_index_;
    uint32_t tokens_ = 0;
  };

  absl::StatusOr<std::unique_ptr<GenerationHandle>> Start(GenerationInput input, GenerationObserver* observer) override;

  // The next starts fail so.
  void RefuseWith(absl::Status status);
  // Waits for the nth start.
  std::shared_ptr<Run> WaitForStart(size_t n = 0);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status refuse_with_;
  std::vector<std::shared_ptr<Run>> runs_;
};

}  // namespace winnow
