#pragma once
#include <ctime>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "router/text/chat_template/ast.h"
#include "router/text/chat_template/value.h"

namespace winnow::chat_template {

// Renders a parsed template once. Errors name the line.
class Interpreter {
 public:
  // `heap` and `body` must outlive the interpreter. `now` is what strftime_now shows, in local time.
  Interpreter(Heap* heap, std::time_t now) : heap_(heap), now_(now) {}

  absl::StatusOr<std::string> Render(const Body& body, Scope* globals);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Nesting;
  using Result = absl::StatusOr<Value>;

  absl::StatusOr<Flow> Run(const Body& body);
  absl::StatusOr<Flow> Execute(const Statement& statement);
  absl::StatusOr<Flow> ExecuteIf(const Statement& statement);
  absl::StatusOr<Flow> ExecuteFor(const Statement& statement);
  absl::StatusOr<Flow> ExecuteWith(const Statement& statement);
  absl::Status ExecuteSet(const Statement& statement);
  absl::Status ExecuteCapture(const Statement& statement);
  absl::Status ExecuteMacro(const Statement& statement);
  absl::StatusOr<std::vector<Value>> LoopItems(const Statement& statement);
  absl::Status Assign(const Target& target, Value value);
  absl::Status AssignName(const std::string& name, Value value);
  absl::Status Emit(std::string_view text);
  // What a body prints, in a scope of its own.
  Result Capture(const Body& body, Scope* scope);

  Result Evaluate(const Expression& expression);
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
  Result CallFunction(std::string_view name, const Arguments& arguments);
  Result StrftimeNow(const Arguments& arguments);

  Heap* const heap_;
  const std::time_t now_;
  Scope* scope_ = nullptr;
  std::string* out_ = nullptr;
  const Value* filter_input_ = nullptr;  // what the innermost filter of a filter block takes
  int nesting_ = 0;
  int line_ = 1;  // of what was evaluated last
};

}  // namespace winnow::chat_template
