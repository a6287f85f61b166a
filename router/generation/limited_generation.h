#pragma once
#include <memory>

#include "router/generation/generation.h"

namespace winnow {

// Keeps generations, and forks of them, within the limits of the API key that they come with, and counts what they use.
// Those of callers without an account pass.
class LimitedGeneration final : public Generation {
 public:
  // `inner` must outlive this and the handles.
  explicit LimitedGeneration(Generation* inner) : inner_(inner) {}

  // Statuses of KeyAccount::Admit, and those of `inner`.
  absl::StatusOr<std::unique_ptr<GenerationHandle>> Start(GenerationInput input, GenerationObserver* observer) override;
  absl::Status Abort(const std::string& resume_token, const Caller& caller) override {
    return inner_->Abort(resume_token, caller);
  }

 private:
  Generation* const inner_;
};

}  // namespace winnow
