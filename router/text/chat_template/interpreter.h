#pragma once
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "router/text/chat_template/ast.h"
#include "router/text/chat_template/evaluator.h"
#include "router/text/chat_template/render_state.h"
#include "router/text/chat_template/value.h"

namespace winnow::chat_template {

// Renders a parsed template once: executes its statements, whose expressions Evaluator evaluates. Errors name the line.
class Interpreter final : private MacroRunner {
 public:
  // `heap` and `body` must outlive the interpreter. `now` is what strftime_now shows, in local time.
  Interpreter(Heap* heap, std::time_t now) : state_{.heap = heap}, evaluator_(&state_, now, this) {}
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  absl::StatusOr<std::string> Render(const Body& body, Scope* globals);

 private:
  enum class Flow { kNext, kBreak, kContinue };

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
  // In a scope of its own.
  absl::StatusOr<Value> Capture(const Body& body, Scope* scope) override;

  RenderState state_;
  Evaluator evaluator_;
  std::string* out_ = nullptr;
};

}  // namespace winnow::chat_template
