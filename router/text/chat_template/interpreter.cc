#include "router/text/chat_template/interpreter.h"

#include <algorithm>
#include <array>
#include <utility>

#include "router/text/chat_template/filters.h"
#include "router/text/chat_template/methods.h"
#include "router/text/chat_template/operators.h"
#include "router/text/chat_template/value_tests.h"
#include "router/text/chat_template/value_text.h"
#include "router/text/utf8.h"

namespace winnow::chat_template {
namespace {

// Calls of Evaluate and Run inside each other. Below the sum of the parser's limits on trees and blocks times macro
// calls; at most a few hundred bytes of stack each.
constexpr int kMaxNesting = 500;
constexpr int64_t kMaxRange = 100'000;  // Jinja's sandbox has the same
constexpr std::array<std::string_view, 5> kFunctions = {"range", "namespace", "dict", "raise_exception",
                                                        "strftime_now"};

absl::Status Error(std::string_view what) {
  return absl::InvalidArgumentError(AbslSv(what));
}

}  // namespace

class Interpreter::Nesting {
 public:
  explicit Nesting(Interpreter* interpreter) : interpreter_(interpreter) { ++interpreter_->nesting_; }
  ~Nesting() { --interpreter_->nesting_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;
  absl::Status Check() const {
    if (interpreter_->nesting_ > kMaxNesting) return absl::ResourceExhaustedError("the template recurses too deeply");
    return interpreter_->heap_->Step();
  }

 private:
  Interpreter* const interpreter_;
};

absl::StatusOr<std::string> Interpreter::Render(const Body& body, Scope* globals) {
  std::string out;
  scope_ = globals;
  out_ = &out;
  const auto flow = Run(body);
  if (!flow.ok()) return Annotate(flow.status(), absl::StrCat("line ", line_));
  return out;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Run(const Body& body) {
  const Nesting nesting(this);
  WINNOW_RETURN_IF_ERROR(nesting.Check());
  for (const auto& statement : body) {
    WINNOW_ASSIGN_OR_RETURN(const Flow flow, Execute(*statement));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Execute(const Statement& statement) {
  WINNOW_RETURN_IF_ERROR(heap_->Step());
  line_ = statement.line;
  switch (statement.kind) {
    case Statement::Kind::kText:
      WINNOW_RETURN_IF_ERROR(Emit(statement.text));
      return Flow::kNext;
    case Statement::Kind::kOutput: {
      WINNOW_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
      if (value.is_string()) {
        WINNOW_RETURN_IF_ERROR(Emit(value.AsString()));
        return Flow::kNext;
      }
      WINNOW_ASSIGN_OR_RETURN(const std::string text, ToText(heap_, value));
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
  if (out_->size() + text.size() > static_cast<size_t>(heap_->limits().max_output_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the template writes more than ", heap_->limits().max_output_bytes, " bytes"));
  }
  WINNOW_RETURN_IF_ERROR(heap_->ChargeWork(text.size()));
  out_->append(text);
  return absl::OkStatus();
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteIf(const Statement& statement) {
  for (const Statement::Branch& branch : statement.branches) {
    if (branch.condition == nullptr) return Run(branch.body);
    WINNOW_ASSIGN_OR_RETURN(const Value condition, Evaluate(*branch.condition));
    if (condition.Truthy()) return Run(branch.body);
  }
  return Flow::kNext;
}

absl::StatusOr<std::vector<Value>> Interpreter::LoopItems(const Statement& statement) {
  WINNOW_ASSIGN_OR_RETURN(const Value sequence, Evaluate(*statement.expression));
  WINNOW_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(heap_, sequence));
  if (statement.condition == nullptr) return items;
  std::vector<Value> chosen;
  for (Value& item : items) {
    WINNOW_RETURN_IF_ERROR(Assign(statement.target, item));
    WINNOW_ASSIGN_OR_RETURN(const Value keep, Evaluate(*statement.condition));
    if (keep.Truthy()) chosen.push_back(std::move(item));
  }
  return chosen;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteFor(const Statement& statement) {
  Scope* const outer = scope_;
  Scope* const inner = heap_->NewScope(outer);
  scope_ = inner;
  auto chosen = LoopItems(statement);
  scope_ = outer;
  if (!chosen.ok()) return chosen.status();
  if (chosen->empty()) return Run(statement.otherwise);
  const List* items = heap_->NewList(*std::move(chosen));
  Loop* loop = heap_->NewLoop();
  loop->items = &items->items;
  scope_ = inner;
  for (loop->index0 = 0; loop->index0 < items->items.size(); ++loop->index0) {
    inner->variables.clear();
    WINNOW_RETURN_IF_ERROR(AssignName("loop", Value(loop)));
    WINNOW_RETURN_IF_ERROR(Assign(statement.target, items->items[loop->index0]));
    WINNOW_ASSIGN_OR_RETURN(const Flow flow, Run(statement.body));
    scope_ = inner;
    if (flow == Flow::kBreak) break;
  }
  scope_ = outer;
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteWith(const Statement& statement) {
  Scope* const outer = scope_;
  Scope* const inner = heap_->NewScope(outer);
  for (const auto& [name, expression] : statement.assignments) {
    WINNOW_ASSIGN_OR_RETURN(Value value, Evaluate(*expression));
    inner->variables[name] = std::move(value);
  }
  scope_ = inner;
  WINNOW_ASSIGN_OR_RETURN(const Flow flow, Run(statement.body));
  scope_ = outer;
  return flow;
}

absl::Status Interpreter::ExecuteSet(const Statement& statement) {
  WINNOW_ASSIGN_OR_RETURN(Value value, Evaluate(*statement.expression));
  return Assign(statement.target, std::move(value));
}

Interpreter::Result Interpreter::Capture(const Body& body, Scope* scope) {
  std::string text;
  Scope* const outer_scope = std::exchange(scope_, scope);
  std::string* const outer_out = std::exchange(out_, &text);
  const auto flow = Run(body);
  scope_ = outer_scope;
  out_ = outer_out;
  if (!flow.ok()) return flow.status();
  return heap_->String(std::move(text));
}

absl::Status Interpreter::ExecuteCapture(const Statement& statement) {
  WINNOW_ASSIGN_OR_RETURN(Value text, Capture(statement.body, heap_->NewScope(scope_)));
  if (statement.filters != nullptr) {
    const Value* const outer = std::exchange(filter_input_, &text);
    auto filtered = Evaluate(*statement.filters);
    filter_input_ = outer;
    if (!filtered.ok()) return filtered.status();
    text = *std::move(filtered);
  }
  if (statement.kind == Statement::Kind::kSetBlock) return Assign(statement.target, std::move(text));
  WINNOW_ASSIGN_OR_RETURN(const std::string printed, ToText(heap_, text));
  return Emit(printed);
}

absl::Status Interpreter::ExecuteMacro(const Statement& statement) {
  Callable callable;
  callable.macro = &statement.macro;
  callable.closure = scope_;
  callable.name = statement.macro.name;
  return AssignName(statement.macro.name, Value(heap_->NewCallable(std::move(callable))));
}

absl::Status Interpreter::Assign(const Target& target, Value value) {
  if (!target.attribute.empty()) {
    for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
      const auto it = scope->variables.find(target.names[0]);
      if (it == scope->variables.end()) continue;
      if (!it->second.is_dict() || !it->second.AsDict().is_namespace) break;
      WINNOW_RETURN_IF_ERROR(heap_->ChargeBytes(sizeof(Value)));
      it->second.AsDict().Set(target.attribute, std::move(value));
      return absl::OkStatus();
    }
    return Error(absl::StrCat("cannot assign to '", target.names[0], ".", target.attribute, "': not a namespace"));
  }
  if (!target.unpack) return AssignName(target.names[0], std::move(value));
  WINNOW_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(heap_, value));
  if (items.size() != target.names.size()) {
    return Error(absl::StrCat("cannot unpack ", items.size(), " values into ", target.names.size(), " names"));
  }
  for (size_t i = 0; i < items.size(); ++i) WINNOW_RETURN_IF_ERROR(AssignName(target.names[i], std::move(items[i])));
  return absl::OkStatus();
}

absl::Status Interpreter::AssignName(const std::string& name, Value value) {
  WINNOW_RETURN_IF_ERROR(heap_->Step());
  scope_->variables[name] = std::move(value);
  return absl::OkStatus();
}

Interpreter::Result Interpreter::Evaluate(const Expression& expression) {
  const Nesting nesting(this);
  WINNOW_RETURN_IF_ERROR(nesting.Check());
  line_ = expression.line;
  return EvaluateAny(expression);
}

Interpreter::Result Interpreter::EvaluateAny(const Expression& expression) {
  using Kind = Expression::Kind;
  switch (expression.kind) {
    case Kind::kConstant:
      return expression.constant;
    case Kind::kName:
      return EvaluateName(expression);
    case Kind::kList:
    case Kind::kTuple:
      return EvaluateList(expression);
    case Kind::kDict:
      return EvaluateDict(expression);
    case Kind::kNot: {
      WINNOW_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.operands[0]));
      return Value(!value.Truthy());
    }
    case Kind::kNegative: {
      WINNOW_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.operands[0]));
      return Negate(value);
    }
    case Kind::kPositive: {
      WINNOW_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.operands[0]));
      return value.is_number() ? Result(value) : Error("'+' needs a number");
    }
    case Kind::kBinary:
      return EvaluateBinary(expression);
    case Kind::kCompare:
      return EvaluateCompare(expression);
    case Kind::kAnd:
    case Kind::kOr:
      return EvaluateLogic(expression);
    case Kind::kConcat:
      return EvaluateConcat(expression);
    case Kind::kConditional:
      return EvaluateConditional(expression);
    case Kind::kAttribute: {
      WINNOW_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.operands[0]));
      return GetAttribute(heap_, object, expression.name);
    }
    case Kind::kSubscript:
      return EvaluateSubscript(expression);
    case Kind::kSlice:
      return EvaluateSlice(expression);
    case Kind::kCall:
      return EvaluateCall(expression);
    case Kind::kFilter:
      return EvaluateFilter(expression);
    case Kind::kTest:
      return EvaluateTest(expression);
  }
  return Error("unknown expression");
}

Interpreter::Result Interpreter::EvaluateName(const Expression& expression) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    const auto it = scope->variables.find(expression.name);
    if (it != scope->variables.end()) return it->second;
  }
  if (std::find(kFunctions.begin(), kFunctions.end(), expression.name) != kFunctions.end()) {
    return Value(heap_->NewCallable({.name = expression.name}));
  }
  return Value::UndefinedNamed(expression.name);
}

Interpreter::Result Interpreter::EvaluateList(const Expression& expression) {
  std::vector<Value> items;
  for (const ExpressionPtr& operand : expression.operands) {
    WINNOW_ASSIGN_OR_RETURN(Value item, Evaluate(*operand));
    items.push_back(std::move(item));
  }
  return Value(heap_->NewList(std::move(items), expression.kind == Expression::Kind::kTuple));
}

Interpreter::Result Interpreter::EvaluateDict(const Expression& expression) {
  Dict* dict = heap_->NewDict();
  for (size_t i = 0; i + 1 < expression.operands.size(); i += 2) {
    WINNOW_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.operands[i]));
    if (!key.is_string()) return Error(absl::StrCat("a dict's keys are strings here, got ", AbslSv(key.TypeName())));
    WINNOW_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.operands[i + 1]));
    WINNOW_RETURN_IF_ERROR(heap_->ChargeBytes(2 * key.AsString().size() + 2 * sizeof(Value)));
    dict->Set(key.AsString(), std::move(value));
  }
  return Value(dict);
}

Interpreter::Result Interpreter::EvaluateCompare(const Expression& expression) {
  WINNOW_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.operands[0]));
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    WINNOW_ASSIGN_OR_RETURN(Value right, Evaluate(*expression.operands[i + 1]));
    WINNOW_ASSIGN_OR_RETURN(const bool holds, Compare(heap_, expression.operators[i], left, right));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Interpreter::Result Interpreter::EvaluateBinary(const Expression& expression) {
  WINNOW_ASSIGN_OR_RETURN(const Value left, Evaluate(*expression.operands[0]));
  WINNOW_ASSIGN_OR_RETURN(const Value right, Evaluate(*expression.operands[1]));
  return Arithmetic(heap_, expression.operators[0], left, right);
}

Interpreter::Result Interpreter::EvaluateLogic(const Expression& expression) {
  WINNOW_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.operands[0]));
  if (left.Truthy() == (expression.kind == Expression::Kind::kOr)) return left;
  return Evaluate(*expression.operands[1]);
}

Interpreter::Result Interpreter::EvaluateConcat(const Expression& expression) {
  std::string out;
  for (const ExpressionPtr& operand : expression.operands) {
    WINNOW_ASSIGN_OR_RETURN(const Value value, Evaluate(*operand));
    WINNOW_ASSIGN_OR_RETURN(const std::string text, ToText(heap_, value));
    WINNOW_RETURN_IF_ERROR(heap_->ChargeBytes(text.size()));
    out.append(text);
  }
  return Value::String(std::move(out));
}

Interpreter::Result Interpreter::EvaluateConditional(const Expression& expression) {
  WINNOW_ASSIGN_OR_RETURN(const Value condition, Evaluate(*expression.operands[1]));
  if (condition.Truthy()) return Evaluate(*expression.operands[0]);
  if (expression.operands[2] != nullptr) return Evaluate(*expression.operands[2]);
  return Value::UndefinedNamed("the value of an if without else");
}

Interpreter::Result Interpreter::EvaluateSubscript(const Expression& expression) {
  WINNOW_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.operands[0]));
  WINNOW_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.operands[1]));
  return GetItem(heap_, object, key);
}

Interpreter::Result Interpreter::EvaluateSlice(const Expression& expression) {
  WINNOW_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.operands[0]));
  std::array<Value, 3> bounds = {Value(None{}), Value(None{}), Value(None{})};
  for (size_t i = 0; i < 3; ++i) {
    if (expression.operands[i + 1] == nullptr) continue;
    WINNOW_ASSIGN_OR_RETURN(bounds[i], Evaluate(*expression.operands[i + 1]));
  }
  return Slice(heap_, object, bounds[0], bounds[1], bounds[2]);
}

absl::StatusOr<Arguments> Interpreter::EvaluateArguments(const Expression& expression) {
  Arguments arguments;
  for (size_t i = 1; i < expression.operands.size(); ++i) {
    WINNOW_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.operands[i]));
    arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, operand] : expression.named) {
    WINNOW_ASSIGN_OR_RETURN(Value value, Evaluate(*operand));
    arguments.named.emplace_back(name, std::move(value));
  }
  return arguments;
}

Interpreter::Result Interpreter::EvaluateFilter(const Expression& expression) {
  Value input;
  if (expression.operands[0] != nullptr) {
    WINNOW_ASSIGN_OR_RETURN(input, Evaluate(*expression.operands[0]));
  } else {
    input = *filter_input_;
  }
  WINNOW_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  line_ = expression.line;
  return ApplyFilter(heap_, expression.name, input, arguments);
}

Interpreter::Result Interpreter::EvaluateTest(const Expression& expression) {
  WINNOW_ASSIGN_OR_RETURN(const Value input, Evaluate(*expression.operands[0]));
  WINNOW_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  line_ = expression.line;
  WINNOW_ASSIGN_OR_RETURN(const bool passes, ApplyTest(heap_, expression.name, input, arguments));
  return Value(passes);
}

Interpreter::Result Interpreter::EvaluateCall(const Expression& expression) {
  const Expression& callee = *expression.operands[0];
  if (callee.kind == Expression::Kind::kAttribute) {
    WINNOW_ASSIGN_OR_RETURN(const Value object, Evaluate(*callee.operands[0]));
    WINNOW_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
    line_ = expression.line;
    if (HasMethod(object, callee.name)) return CallMethod(heap_, object, callee.name, arguments);
    WINNOW_ASSIGN_OR_RETURN(const Value function, GetAttribute(heap_, object, callee.name));
    if (function.is_undefined()) {
      return Error(absl::StrCat("a value of type ", AbslSv(object.TypeName()), " has no method '", callee.name, "'"));
    }
    return CallValue(function, arguments);
  }
  WINNOW_ASSIGN_OR_RETURN(const Value function, Evaluate(callee));
  WINNOW_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  line_ = expression.line;
  return CallValue(function, arguments);
}

Interpreter::Result Interpreter::CallValue(const Value& callee, const Arguments& arguments) {
  if (callee.is_undefined()) return Error(absl::StrCat(callee.UndefinedMessage(), " and cannot be called"));
  if (!callee.is_callable()) {
    return Error(absl::StrCat("a value of type ", AbslSv(callee.TypeName()), " cannot be called"));
  }
  const Callable& callable = callee.AsCallable();
  if (callable.macro != nullptr) return CallMacro(callable, arguments);
  if (!callable.self.has_value()) return CallFunction(callable.name, arguments);
  if (callable.self->is_loop()) {  // loop.cycle
    if (arguments.positional.empty()) return Error("loop.cycle() needs arguments");
    return arguments.positional[callable.self->AsLoop().index0 % arguments.positional.size()];
  }
  return CallMethod(heap_, *callable.self, callable.name, arguments);
}

Interpreter::Result Interpreter::CallMacro(const Callable& callable, const Arguments& arguments) {
  const Macro& macro = *callable.macro;
  if (arguments.positional.size() > macro.parameters.size()) {
    return Error(absl::StrCat("macro '", macro.name, "' takes at most ", macro.parameters.size(), " arguments"));
  }
  for (const auto& argument : arguments.named) {
    const std::string& name = argument.first;
    const auto it = std::find_if(macro.parameters.begin(), macro.parameters.end(),
                                 [&](const auto& parameter) { return parameter.first == name; });
    if (it == macro.parameters.end()) {
      return Error(absl::StrCat("macro '", macro.name, "' has no parameter '", name, "'"));
    }
    if (static_cast<size_t>(it - macro.parameters.begin()) < arguments.positional.size()) {
      return Error(absl::StrCat("macro '", macro.name, "' got its parameter '", name, "' twice"));
    }
  }
  Scope* const scope = heap_->NewScope(callable.closure);
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [name, fallback] = macro.parameters[i];
    Value value = Value::UndefinedNamed(name);
    if (const Value* given = arguments.Get(i, name)) {
      value = *given;
    } else if (fallback != nullptr) {
      Scope* const outer = std::exchange(scope_, scope);
      auto evaluated = Evaluate(*fallback);
      scope_ = outer;
      if (!evaluated.ok()) return evaluated.status();
      value = *std::move(evaluated);
    }
    scope->variables[name] = std::move(value);
  }
  return Capture(macro.body, scope);
}

Interpreter::Result Interpreter::CallFunction(std::string_view name, const Arguments& arguments) {
  if (name == "raise_exception") {
    std::string message = "raise_exception";
    if (const Value* value = arguments.Get(0, "message")) {
      WINNOW_ASSIGN_OR_RETURN(message, ToText(heap_, *value));
    }
    return Error(message);
  }
  if (name == "strftime_now") return StrftimeNow(arguments);
  if (name == "range") {
    std::array<int64_t, 3> bounds = {0, 0, 1};  // start, stop, step
    const size_t count = arguments.positional.size();
    if (count < 1 || count > 3) return Error("range() takes one to three integers");
    for (size_t i = 0; i < count; ++i) {
      if (!arguments.positional[i].is_integral()) return Error("range() takes integers");
      bounds[count == 1 ? 1 : i] = arguments.positional[i].AsInt();
    }
    const auto [start, stop, step] = bounds;
    if (step == 0) return Error("range() with a step of zero");
    std::vector<Value> items;
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
      if (static_cast<int64_t>(items.size()) == kMaxRange) {
        return absl::ResourceExhaustedError(absl::StrCat("range() of more than ", kMaxRange, " numbers"));
      }
      items.push_back(Value(i));
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    WINNOW_RETURN_IF_ERROR(heap_->Step(static_cast<int64_t>(items.size())));
    return Value(heap_->NewList(std::move(items)));
  }
  // namespace and dict
  Dict* dict = heap_->NewDict();
  dict->is_namespace = name == "namespace";
  if (const Value* source = arguments.Get(0, ""); source != nullptr) {
    if (!source->is_dict()) return Error(absl::StrCat(AbslSv(name), "() takes a dict or named values"));
    for (const auto& [key, value] : source->AsDict().entries) {
      WINNOW_RETURN_IF_ERROR(heap_->ChargeBytes(2 * key.size() + 2 * sizeof(Value)));
      dict->Set(key, value);
    }
  }
  for (const auto& [key, value] : arguments.named) dict->Set(key, value);
  return Value(dict);
}

Interpreter::Result Interpreter::StrftimeNow(const Arguments& arguments) {
  const Value* format = arguments.Get(0, "format");
  if (format == nullptr || !format->is_string()) return Error("strftime_now() needs a format");
  if (format->AsString().size() > 256) return Error("strftime_now(): the format is too long");
  if (format->AsString().empty()) return Value::String("");
  std::tm local{};
  localtime_r(&now_, &local);
  std::array<char, 4096> buffer;
  const size_t bytes = std::strftime(buffer.data(), buffer.size(), format->AsString().c_str(), &local);
  const std::string_view text(buffer.data(), bytes);
  if (FindInvalidUtf8(text) != text.npos) return Error("strftime_now(): the result is not UTF-8");
  return heap_->String(std::string(text));
}

}  // namespace winnow::chat_template
