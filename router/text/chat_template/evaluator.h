#pragma once
#include <ctime>

#include "common/base/status.h"
#include "router/text/chat_template/ast.h"
#include "router/text/chat_template/render_state.h"
#include "router/text/chat_template/value.h"

namespace winnow::chat_template {

// Runs the bodies of macros, which are statements.
class MacroRunner {
 public:
  virtual ~MacroRunner() = default;
  // What a body prints, in this scope.
  virtual absl::StatusOr<Value> Capture(const Body& body, Scope* scope) = 0;
};

// Values of expressions in the scope that a render is in.
class Evaluator {
 public:
  // `now` is what strftime_now shows, in local time.
  Evaluator(RenderState* state, std::time_t now, MacroRunner* macros) : state_(state), now_(now), macros_(macros) {}

  absl::StatusOr<Value> Evaluate(const Expression& expression);
  // A chain of filters whose innermost one lacks its input.
  absl::StatusOr<Value> EvaluateFilters(const Expression& filters, const Value& input);

 private:
  using Result = absl::StatusOr<Value>;

  Result EvaluateAny(const Expression& expression);
  Result EvaluateName(const Expression& expression);
  Result EvaluateList(const Expression& expression);
  Result EvaluateDict(const Expression& expression);
  Result EvaluateCompare(const Expression& expression);
  Result EvaluateBinary(const Expression& expression);
  Result EvaluateLogic(const Expression& expression);
  Result EvaluateConcat(const Expression& expression);
  Result EvaluateConditional(const Expression& expression);
  Result EvaluateSubscript(const Expression& expression);
  Result EvaluateSlice(const Expression& expression);
  Result EvaluateCall(const Expression& expression);
  Result EvaluateFilter(const Expression& expression);
  Result EvaluateTest(const Expression& expression);
  absl::StatusOr<Arguments> EvaluateArguments(const Expression& expression);
  Result CallValue(const Value& callee, const Arguments& arguments);
  Result CallMacro(const Callable& callable, const Arguments& arguments);

  RenderState* const state_;
  const std::time_t now_;
  MacroRunner* const macros_;
  const Value* filter_input_ = nullptr;  // what the innermost filter of EvaluateFilters takes
};

}  // namespace winnow::chat_template
