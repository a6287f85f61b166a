#include "router/text/chat_template/interpreter.h"

#include <utility>
#include <vector>

#include "router/text/chat_template/item_access.h"
#include "router/text/chat_template/template_error.h"
#include "router/text/chat_template/value_text.h"

namespace winnow::chat_template {
absl::StatusOr<std::string> Interpreter::Render(const Body& body, Scope* globals) {
  std::string out;
  state_.scope = globals;
  out_ = &out;
  const auto flow = Run(body);
  if (!flow.ok()) return Annotate(flow.status(), absl::StrCat("line ", state_.line));
  return out;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Run(const Body& body) {
  const Nesting nesting(&state_);
  WINNOW_RETURN_IF_ERROR(nesting.Check());
  for (const auto& statement : body) {
    WINNOW_ASSIGN_OR_RETURN(const Flow flow, Execute(*statement));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Execute(const Statement& statement) {
  WINNOW_RETURN_IF_ERROR(state_.heap->Step());
  state_.line = statement.line;
  switch (statement.kind) {
    case Statement::Kind::kText:
      WINNOW_RETURN_IF_ERROR(Emit(statement.text));
      return Flow::kNext;
    case Statement::Kind::kOutput: {
      WINNOW_ASSIGN_OR_RETURN(const Value value, evaluator_.Evaluate(*statement.expression));
      if (value.is_string()) {
        WINNOW_RETURN_IF_ERROR(Emit(value.AsString()));
        return Flow::kNext;
      }
      WINNOW_ASSIGN_OR_RETURN(const std::string text, ToText(state_.heap, value));
      WINNOW_RETURN_IF_ERROR(Emit(text));
      return Flow::kNext;
    }
    case Statement::Kind::kIf:
      return ExecuteIf(statement);
    case Statement::Kind::kFor:
      return ExecuteFor(statement);
    case Statement::Kind::kWith:
      return ExecuteWith(statement);
    case Statement::Kind::kBlock:
      return Run(statement.body);
    case Statement::Kind::kSet:
      WINNOW_RETURN_IF_ERROR(ExecuteSet(statement));
      return Flow::kNext;
    case Statement::Kind::kSetBlock:
    case Statement::Kind::kFilter:
      WINNOW_RETURN_IF_ERROR(ExecuteCapture(statement));
      return Flow::kNext;
    case Statement::Kind::kMacro:
      WINNOW_RETURN_IF_ERROR(ExecuteMacro(statement));
      return Flow::kNext;
    case Statement::Kind::kBreak:
      return Flow::kBreak;
    case Statement::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

absl::Status Interpreter::Emit(std::string_view text) {
  if (out_->size() + text.size() > static_cast<size_t>(state_.heap->limits().max_output_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the template writes more than ", state_.heap->limits().max_output_bytes, " bytes"));
  }
  WINNOW_RETURN_IF_ERROR(state_.heap->ChargeWork(text.size()));
  out_->append(text);
  return absl::OkStatus();
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteIf(const Statement& statement) {
  for (const Statement::Branch& branch : statement.branches) {
    if (branch.condition == nullptr) return Run(branch.body);
    WINNOW_ASSIGN_OR_RETURN(const Value condition, evaluator_.Evaluate(*branch.condition));
    if (condition.Truthy()) return Run(branch.body);
  }
  return Flow::kNext;
}

absl::StatusOr<std::vector<Value>> Interpreter::LoopItems(const Statement& statement) {
  WINNOW_ASSIGN_OR_RETURN(const Value sequence, evaluator_.Evaluate(*statement.expression));
  WINNOW_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(state_.heap, sequence));
  if (statement.condition == nullptr) return items;
  std::vector<Value> chosen;
  for (Value& item : items) {
    WINNOW_RETURN_IF_ERROR(Assign(statement.target, item));
    WINNOW_ASSIGN_OR_RETURN(const Value keep, evaluator_.Evaluate(*statement.condition));
    if (keep.Truthy()) chosen.push_back(std::move(item));
  }
  return chosen;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteFor(const Statement& statement) {
  Scope* const outer = state_.scope;
  Scope* const inner = state_.heap->NewScope(outer);
  state_.scope = inner;
  auto chosen = LoopItems(statement);
  state_.scope = outer;
  if (!chosen.ok()) return chosen.status();
  if (chosen->empty()) return Run(statement.otherwise);
  const List* items = state_.heap->NewList(*std::move(chosen));
  Loop* loop = state_.heap->NewLoop();
  loop->items = &items->items;
  state_.scope = inner;
  for (loop->index0 = 0; loop->index0 < items->items.size(); ++loop->index0) {
    inner->variables.clear();
    WINNOW_RETURN_IF_ERROR(AssignName("loop", Value(loop)));
    WINNOW_RETURN_IF_ERROR(Assign(statement.target, items->items[loop->index0]));
    WINNOW_ASSIGN_OR_RETURN(const Flow flow, Run(statement.body));
    state_.scope = inner;
    if (flow == Flow::kBreak) break;
  }
  state_.scope = outer;
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteWith(const Statement& statement) {
  Scope* const outer = state_.scope;
  Scope* const inner = state_.heap->NewScope(outer);
  for (const auto& [name, expression] : statement.assignments) {
    WINNOW_ASSIGN_OR_RETURN(Value value, evaluator_.Evaluate(*expression));
    inner->variables[name] = std::move(value);
  }
  state_.scope = inner;
  WINNOW_ASSIGN_OR_RETURN(const Flow flow, Run(statement.body));
  state_.scope = outer;
  return flow;
}

absl::Status Interpreter::ExecuteSet(const Statement& statement) {
  WINNOW_ASSIGN_OR_RETURN(Value value, evaluator_.Evaluate(*statement.expression));
  return Assign(statement.target, std::move(value));
}

absl::StatusOr<Value> Interpreter::Capture(const Body& body, Scope* scope) {
  std::string text;
  Scope* const outer_scope = std::exchange(state_.scope, scope);
  std::string* const outer_out = std::exchange(out_, &text);
  const auto flow = Run(body);
  state_.scope = outer_scope;
  out_ = outer_out;
  if (!flow.ok()) return flow.status();
  return state_.heap->String(std::move(text));
}

absl::Status Interpreter::ExecuteCapture(const Statement& statement) {
  WINNOW_ASSIGN_OR_RETURN(Value text, Capture(statement.body, state_.heap->NewScope(state_.scope)));
  if (statement.filters != nullptr) {
    WINNOW_ASSIGN_OR_RETURN(text, evaluator_.EvaluateFilters(*statement.filters, Value(text)));
  }
  if (statement.kind == Statement::Kind::kSetBlock) return Assign(statement.target, std::move(text));
  WINNOW_ASSIGN_OR_RETURN(const std::string printed, ToText(state_.heap, text));
  return Emit(printed);
}

absl::Status Interpreter::ExecuteMacro(const Statement& statement) {
  Callable callable;
  callable.macro = &statement.macro;
  callable.closure = state_.scope;
  callable.name = statement.macro.name;
  return AssignName(statement.macro.name, Value(state_.heap->NewCallable(std::move(callable))));
}

absl::Status Interpreter::Assign(const Target& target, Value value) {
  if (!target.attribute.empty()) {
    for (Scope* scope = state_.scope; scope != nullptr; scope = scope->parent) {
      const auto it = scope->variables.find(target.names[0]);
      if (it == scope->variables.end()) continue;
      if (!it->second.is_dict() || !it->second.AsDict().is_namespace) break;
      WINNOW_RETURN_IF_ERROR(state_.heap->ChargeBytes(sizeof(Value)));
      it->second.AsDict().Set(target.attribute, std::move(value));
      return absl::OkStatus();
    }
    return Error(absl::StrCat("cannot assign to '", target.names[0], ".", target.attribute, "': not a namespace"));
  }
  if (!target.unpack) return AssignName(target.names[0], std::move(value));
  WINNOW_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(state_.heap, value));
  if (items.size() != target.names.size()) {
    return Error(absl::StrCat("cannot unpack ", items.size(), " values into ", target.names.size(), " names"));
  }
  for (size_t i = 0; i < items.size(); ++i) WINNOW_RETURN_IF_ERROR(AssignName(target.names[i], std::move(items[i])));
  return absl::OkStatus();
}

absl::Status Interpreter::AssignName(const std::string& name, Value value) {
  WINNOW_RETURN_IF_ERROR(state_.heap->Step());
  state_.scope->variables[name] = std::move(value);
  return absl::OkStatus();
}

}  // namespace winnow::chat_template
