#pragma once
#include "common/base/status.h"
#include "router/text/chat_template/value.h"

namespace winnow::chat_template {

// Where one render is: statements and the expressions in them move it together.
struct RenderState {
  Heap* const heap;
  Scope* scope = nullptr;
  int nesting = 0;
  int line = 1;  // of what was executed or evaluated last
};

// A body's or an expression's share of the stack, for as long as it lives.
class Nesting {
 public:
  // Of expressions and bodies inside each other. Below the sum of the parser's limits on trees and blocks times macro
  // calls; at most a few hundred bytes of stack each.
  static constexpr int kMax = 500;

  explicit Nesting(RenderState* state) : state_(state) { ++state_->nesting; }
  ~Nesting() { --state_->nesting; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;
  // RESOURCE_EXHAUSTED when it is too deep, or one step too many.
  absl::Status Check() const {
    if (state_->nesting > kMax) return absl::ResourceExhaustedError("the template recurses too deeply");
    return state_->heap->Step();
  }

 private:
  RenderState* const state_;
};

}  // namespace winnow::chat_template
