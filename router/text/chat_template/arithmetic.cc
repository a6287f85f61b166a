#include "router/text/chat_template/arithmetic.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "router/text/chat_template/template_error.h"

namespace winnow::chat_template {
namespace {

std::string_view Symbol(Operator op) {
  switch (op) {
    case Operator::kAdd:
      return "+";
    case Operator::kSub:
      return "-";
    case Operator::kMul:
      return "*";
    case Operator::kDiv:
      return "/";
    case Operator::kFloorDiv:
      return "//";
    case Operator::kMod:
      return "%";
    default:
      return "**";
  }
}

absl::StatusOr<Value> IntArithmetic(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Operator::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Operator::kSub:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Operator::kMul:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Operator::kDiv:
      if (b == 0) return Error("division by zero");
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case Operator::kFloorDiv:
    case Operator::kMod: {
      if (b == 0) return Error("division by zero");
      if (b == -1) {  // the smallest integer has no negative
        if (op == Operator::kMod) return Value(int64_t{0});
        overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      const bool adjust = a % b != 0 && (a % b < 0) != (b < 0);
      result = op == Operator::kMod ? a % b + (adjust ? b : 0) : a / b - (adjust ? 1 : 0);
      break;
    }
    default: {  // **
      if (b < 0) return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
      if (b > 64 && a != 0 && a != 1 && a != -1) return Error("integer overflow");
      result = 1;
      for (int64_t i = 0, n = b > 64 ? b % 2 + (a == 0 ? 2 : 0) : b; i < n && !overflow; ++i) {
        overflow = __builtin_mul_overflow(result, a, &result);
      }
    }
  }
  if (overflow) return Error("integer overflow");
  return Value(result);
}

absl::StatusOr<Value> FloatArithmetic(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value(a + b);
    case Operator::kSub:
      return Value(a - b);
    case Operator::kMul:
      return Value(a * b);
    case Operator::kPow:
      return Value(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) return Error("division by zero");
  if (op == Operator::kDiv) return Value(a / b);
  const double floored = std::floor(a / b);
  return Value(op == Operator::kFloorDiv ? floored : a - floored * b);
}

absl::StatusOr<Value> Repeat(Heap* heap, const Value& sequence, int64_t count) {
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  const size_t unit =
      sequence.is_string() ? sequence.AsString().size() : sequence.AsList().items.size() * sizeof(Value);
  if (unit > 0 && times > static_cast<size_t>(heap->limits().max_bytes) / unit) {
    return absl::ResourceExhaustedError(absl::StrCat("repeating a value ", times, " times makes it too long"));
  }
  WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(unit * times));
  if (sequence.is_string()) {
    std::string out;
    for (size_t i = 0; unit > 0 && i < times; ++i) out.append(sequence.AsString());
    return Value::String(std::move(out));
  }
  List* list = heap->NewList({}, sequence.AsList().is_tuple);
  const std::vector<Value>& source = sequence.AsList().items;
  for (size_t i = 0; unit > 0 && i < times; ++i) list->items.insert(list->items.end(), source.begin(), source.end());
  return Value(list);
}

}  // namespace

absl::StatusOr<Value> Arithmetic(Heap* heap, Operator op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return IntArithmetic(op, a.AsInt(), b.AsInt());
    return FloatArithmetic(op, a.AsDouble(), b.AsDouble());
  }
  if (op == Operator::kAdd && a.is_string() && b.is_string()) {
    WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(a.AsString().size() + b.AsString().size()));
    return Value::String(a.AsString() + b.AsString());
  }
  if (op == Operator::kAdd && a.is_list() && b.is_list() && a.AsList().is_tuple == b.AsList().is_tuple) {
    std::vector<Value> items = a.AsList().items;
    items.insert(items.end(), b.AsList().items.begin(), b.AsList().items.end());
    WINNOW_RETURN_IF_ERROR(heap->Step(static_cast<int64_t>(items.size())));
    return Value(heap->NewList(std::move(items), a.AsList().is_tuple));
  }
  if (op == Operator::kMul && (a.is_string() || a.is_list()) && b.is_integral()) return Repeat(heap, a, b.AsInt());
  if (op == Operator::kMul && (b.is_string() || b.is_list()) && a.is_integral()) return Repeat(heap, b, a.AsInt());
  return UnsupportedOperands(Symbol(op), a, b);
}

absl::StatusOr<Value> Negate(const Value& a) {
  if (a.is_float()) return Value(-a.AsDouble());
  if (a.is_integral()) return IntArithmetic(Operator::kSub, 0, a.AsInt());
  if (a.is_undefined()) return Error(a.UndefinedMessage());
  return Error(absl::StrCat("a value of type ", AbslSv(a.TypeName()), " has no negative"));
}

absl::Status UnsupportedOperands(std::string_view symbol, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) return Error(value->UndefinedMessage());
  }
  return Error(absl::StrCat("unsupported operand types for ", AbslSv(symbol), ": ", AbslSv(a.TypeName()), " and ",
                            AbslSv(b.TypeName())));
}

}  // namespace winnow::chat_template
