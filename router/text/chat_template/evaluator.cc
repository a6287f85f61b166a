#include "router/text/chat_template/evaluator.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "router/text/chat_template/arithmetic.h"
#include "router/text/chat_template/comparison.h"
#include "router/text/chat_template/filters.h"
#include "router/text/chat_template/functions.h"
#include "router/text/chat_template/item_access.h"
#include "router/text/chat_template/methods.h"
#include "router/text/chat_template/template_error.h"
#include "router/text/chat_template/value_tests.h"
#include "router/text/chat_template/value_text.h"

namespace winnow::chat_template {
Evaluator::Result Evaluator::Evaluate(const Expression& expression) {
  const Nesting nesting(state_);
  WINNOW_RETURN_IF_ERROR(nesting.Check());
  state_->line = expression.line;
  return EvaluateAny(expression);
}

Evaluator::Result Evaluator::EvaluateAny(const Expression& expression) {
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
      return GetAttribute(state_->heap, object, expression.name);
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

Evaluator::Result Evaluator::EvaluateName(const Expression& expression) {
  for (const Scope* scope = state_->scope; scope != nullptr; scope = scope->parent) {
    const auto it = scope->variables.find(expression.name);
    if (it != scope->variables.end()) return it->second;
  }
  if (IsFunction(expression.name)) {
    return Value(state_->heap->NewCallable({.name = expression.name}));
  }
  return Value::UndefinedNamed(expression.name);
}

Evaluator::Result Evaluator::EvaluateList(const Expression& expression) {
  std::vector<Value> items;
  for (const ExpressionPtr& operand : expression.operands) {
    WINNOW_ASSIGN_OR_RETURN(Value item, Evaluate(*operand));
    items.push_back(std::move(item));
  }
  return Value(state_->heap->NewList(std::move(items), expression.kind == Expression::Kind::kTuple));
}

Evaluator::Result Evaluator::EvaluateDict(const Expression& expression) {
  Dict* dict = state_->heap->NewDict();
  for (size_t i = 0; i + 1 < expression.operands.size(); i += 2) {
    WINNOW_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.operands[i]));
    if (!key.is_string()) return Error(absl::StrCat("a dict's keys are strings here, got ", AbslSv(key.TypeName())));
    WINNOW_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.operands[i + 1]));
    WINNOW_RETURN_IF_ERROR(state_->heap->ChargeBytes(2 * key.AsString().size() + 2 * sizeof(Value)));
    dict->Set(key.AsString(), std::move(value));
  }
  return Value(dict);
}

Evaluator::Result Evaluator::EvaluateCompare(const Expression& expression) {
  WINNOW_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.operands[0]));
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    WINNOW_ASSIGN_OR_RETURN(Value right, Evaluate(*expression.operands[i + 1]));
    WINNOW_ASSIGN_OR_RETURN(const bool holds, Compare(state_->heap, expression.operators[i], left, right));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Evaluator::Result Evaluator::EvaluateBinary(const Expression& expression) {
  WINNOW_ASSIGN_OR_RETURN(const Value left, Evaluate(*expression.operands[0]));
  WINNOW_ASSIGN_OR_RETURN(const Value right, Evaluate(*expression.operands[1]));
  return Arithmetic(state_->heap, expression.operators[0], left, right);
}

Evaluator::Result Evaluator::EvaluateLogic(const Expression& expression) {
  WINNOW_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.operands[0]));
  if (left.Truthy() == (expression.kind == Expression::Kind::kOr)) return left;
  return Evaluate(*expression.operands[1]);
}

Evaluator::Result Evaluator::EvaluateConcat(const Expression& expression) {
  std::string out;
  for (const ExpressionPtr& operand : expression.operands) {
    WINNOW_ASSIGN_OR_RETURN(const Value value, Evaluate(*operand));
    WINNOW_ASSIGN_OR_RETURN(const std::string text, ToText(state_->heap, value));
    WINNOW_RETURN_IF_ERROR(state_->heap->ChargeBytes(text.size()));
    out.append(text);
  }
  return Value::String(std::move(out));
}

Evaluator::Result Evaluator::EvaluateConditional(const Expression& expression) {
  WINNOW_ASSIGN_OR_RETURN(const Value condition, Evaluate(*expression.operands[1]));
  if (condition.Truthy()) return Evaluate(*expression.operands[0]);
  if (expression.operands[2] != nullptr) return Evaluate(*expression.operands[2]);
  return Value::UndefinedNamed("the value of an if without else");
}

Evaluator::Result Evaluator::EvaluateSubscript(const Expression& expression) {
  WINNOW_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.operands[0]));
  WINNOW_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.operands[1]));
  return GetItem(state_->heap, object, key);
}

Evaluator::Result Evaluator::EvaluateSlice(const Expression& expression) {
  WINNOW_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.operands[0]));
  std::array<Value, 3> bounds = {Value(None{}), Value(None{}), Value(None{})};
  for (size_t i = 0; i < 3; ++i) {
    if (expression.operands[i + 1] == nullptr) continue;
    WINNOW_ASSIGN_OR_RETURN(bounds[i], Evaluate(*expression.operands[i + 1]));
  }
  return Slice(state_->heap, object, bounds[0], bounds[1], bounds[2]);
}

absl::StatusOr<Arguments> Evaluator::EvaluateArguments(const Expression& expression) {
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

Evaluator::Result Evaluator::EvaluateFilters(const Expression& filters, const Value& input) {
  const Value* const outer = std::exchange(filter_input_, &input);
  auto filtered = Evaluate(filters);
  filter_input_ = outer;
  return filtered;
}

Evaluator::Result Evaluator::EvaluateFilter(const Expression& expression) {
  Value input;
  if (expression.operands[0] != nullptr) {
    WINNOW_ASSIGN_OR_RETURN(input, Evaluate(*expression.operands[0]));
  } else {
    input = *filter_input_;
  }
  WINNOW_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  state_->line = expression.line;
  return ApplyFilter(state_->heap, expression.name, input, arguments);
}

Evaluator::Result Evaluator::EvaluateTest(const Expression& expression) {
  WINNOW_ASSIGN_OR_RETURN(const Value input, Evaluate(*expression.operands[0]));
  WINNOW_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  state_->line = expression.line;
  WINNOW_ASSIGN_OR_RETURN(const bool passes, ApplyTest(state_->heap, expression.name, input, arguments));
  return Value(passes);
}

Evaluator::Result Evaluator::EvaluateCall(const Expression& expression) {
  const Expression& callee = *expression.operands[0];
  if (callee.kind == Expression::Kind::kAttribute) {
    WINNOW_ASSIGN_OR_RETURN(const Value object, Evaluate(*callee.operands[0]));
    WINNOW_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
    state_->line = expression.line;
    if (HasMethod(object, callee.name)) return CallMethod(state_->heap, object, callee.name, arguments);
    WINNOW_ASSIGN_OR_RETURN(const Value function, GetAttribute(state_->heap, object, callee.name));
    if (function.is_undefined()) {
      return Error(absl::StrCat("a value of type ", AbslSv(object.TypeName()), " has no method '", callee.name, "'"));
    }
    return CallValue(function, arguments);
  }
  WINNOW_ASSIGN_OR_RETURN(const Value function, Evaluate(callee));
  WINNOW_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  state_->line = expression.line;
  return CallValue(function, arguments);
}

Evaluator::Result Evaluator::CallValue(const Value& callee, const Arguments& arguments) {
  if (callee.is_undefined()) return Error(absl::StrCat(callee.UndefinedMessage(), " and cannot be called"));
  if (!callee.is_callable()) {
    return Error(absl::StrCat("a value of type ", AbslSv(callee.TypeName()), " cannot be called"));
  }
  const Callable& callable = callee.AsCallable();
  if (callable.macro != nullptr) return CallMacro(callable, arguments);
  if (!callable.self.has_value()) return CallFunction(state_->heap, now_, callable.name, arguments);
  if (callable.self->is_loop()) {  // loop.cycle
    if (arguments.positional.empty()) return Error("loop.cycle() needs arguments");
    return arguments.positional[callable.self->AsLoop().index0 % arguments.positional.size()];
  }
  return CallMethod(state_->heap, *callable.self, callable.name, arguments);
}

Evaluator::Result Evaluator::CallMacro(const Callable& callable, const Arguments& arguments) {
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
  Scope* const scope = state_->heap->NewScope(callable.closure);
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [name, fallback] = macro.parameters[i];
    Value value = Value::UndefinedNamed(name);
    if (const Value* given = arguments.Get(i, name)) {
      value = *given;
    } else if (fallback != nullptr) {
      Scope* const outer = std::exchange(state_->scope, scope);
      auto evaluated = Evaluate(*fallback);
      state_->scope = outer;
      if (!evaluated.ok()) return evaluated.status();
      value = *std::move(evaluated);
    }
    scope->variables[name] = std::move(value);
  }
  return macros_->Capture(macro.body, scope);
}

}  // namespace winnow::chat_template
