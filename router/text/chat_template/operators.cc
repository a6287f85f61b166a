#include "router/text/chat_template/operators.h"

#include <algorithm>
#include <cmath>

#include "router/text/chat_template/methods.h"
#include "router/text/chat_template/text_functions.h"
#include "router/text/chat_template/value_text.h"
#include "router/text/utf8.h"

namespace winnow::chat_template {
namespace {

constexpr int kMaxDepth = 64;

absl::Status Error(std::string_view what) {
  return absl::InvalidArgumentError(AbslSv(what));
}

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
    case Operator::kPow:
      return "**";
    default:
      return "<";
  }
}

absl::Status Unsupported(Operator op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) return Error(value->UndefinedMessage());
  }
  return Error(absl::StrCat("unsupported operand types for ", AbslSv(Symbol(op)), ": ", AbslSv(a.TypeName()), " and ",
                            AbslSv(b.TypeName())));
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

absl::StatusOr<Value> LoopAttribute(Heap* heap, Loop* loop, std::string_view name) {
  const auto length = static_cast<int64_t>(loop->items->size());
  const auto index0 = static_cast<int64_t>(loop->index0);
  if (name == "index") return Value(index0 + 1);
  if (name == "index0") return Value(index0);
  if (name == "revindex") return Value(length - index0);
  if (name == "revindex0") return Value(length - index0 - 1);
  if (name == "first") return Value(index0 == 0);
  if (name == "last") return Value(index0 + 1 == length);
  if (name == "length") return Value(length);
  if (name == "depth") return Value(int64_t{1});  // counts recursive loops only, which there are none of
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem") return index0 == 0 ? Value::UndefinedNamed("previtem") : (*loop->items)[loop->index0 - 1];
  if (name == "nextitem") {
    return index0 + 1 == length ? Value::UndefinedNamed("nextitem") : (*loop->items)[loop->index0 + 1];
  }
  if (name == "cycle") return Value(heap->NewCallable({.self = Value(loop), .name = std::string(name)}));
  return Value::UndefinedNamed(name);
}

// A method as a value, or undefined.
Value BoundMethod(Heap* heap, const Value& object, std::string_view name) {
  if (!HasMethod(object, name)) return Value::UndefinedNamed(name);
  return Value(heap->NewCallable({.self = object, .name = std::string(name)}));
}

absl::StatusOr<Value> CharacterAt(Heap* heap, const std::string& s, int64_t index) {
  WINNOW_RETURN_IF_ERROR(heap->ChargeWork(s.size()));
  const std::vector<std::string_view> characters = Characters(s);
  const auto count = static_cast<int64_t>(characters.size());
  if (index < 0) index += count;
  if (index < 0 || index >= count) return Value::UndefinedNamed("string index out of range");
  return Value::String(std::string(characters[static_cast<size_t>(index)]));
}

}  // namespace

absl::StatusOr<bool> Equals(Heap* heap, const Value& a, const Value& b, int depth) {
  WINNOW_RETURN_IF_ERROR(heap->Step());
  if (depth > kMaxDepth) return Error("values are nested too deeply to be compared");
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.AsInt() == b.AsInt();
    return a.AsDouble() == b.AsDouble();
  }
  if (a.is_string() && b.is_string()) {
    if (a.AsString().size() != b.AsString().size()) return false;
    WINNOW_RETURN_IF_ERROR(heap->ChargeWork(a.AsString().size()));
    return a.AsString() == b.AsString();
  }
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.is_list() && b.is_list()) {
    const auto &x = a.AsList(), &y = b.AsList();
    if (x.is_tuple != y.is_tuple || x.items.size() != y.items.size()) return false;
    for (size_t i = 0; i < x.items.size(); ++i) {
      WINNOW_ASSIGN_OR_RETURN(const bool same, Equals(heap, x.items[i], y.items[i], depth + 1));
      if (!same) return false;
    }
    return true;
  }
  if (a.is_dict() && b.is_dict()) {
    const auto &x = a.AsDict(), &y = b.AsDict();
    if (x.is_namespace || y.is_namespace) return &x == &y;
    if (x.entries.size() != y.entries.size()) return false;
    for (const auto& [key, value] : x.entries) {
      const Value* other = y.Find(key);
      if (other == nullptr) return false;
      WINNOW_ASSIGN_OR_RETURN(const bool same, Equals(heap, value, *other, depth + 1));
      if (!same) return false;
    }
    return true;
  }
  if (a.is_callable() && b.is_callable()) return &a.AsCallable() == &b.AsCallable();
  return false;
}

absl::StatusOr<int> Order(Heap* heap, const Value& a, const Value& b, int depth) {
  WINNOW_RETURN_IF_ERROR(heap->Step());
  if (depth > kMaxDepth) return Error("values are nested too deeply to be compared");
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.AsInt() < b.AsInt() ? -1 : a.AsInt() > b.AsInt();
    return a.AsDouble() < b.AsDouble() ? -1 : a.AsDouble() > b.AsDouble();
  }
  if (a.is_string() && b.is_string()) {
    WINNOW_RETURN_IF_ERROR(heap->ChargeWork(std::min(a.AsString().size(), b.AsString().size())));
    return a.AsString().compare(b.AsString());  // bytes of UTF-8 sort as their code points
  }
  if (a.is_list() && b.is_list()) {
    const auto &x = a.AsList().items, &y = b.AsList().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      WINNOW_ASSIGN_OR_RETURN(const int order, Order(heap, x[i], y[i], depth + 1));
      if (order != 0) return order;
    }
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  return Unsupported(Operator::kLt, a, b);
}

absl::StatusOr<bool> Contains(Heap* heap, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      if (item.is_undefined()) return Error(item.UndefinedMessage());
      return Error(absl::StrCat("'in <string>' needs a string on its left, got ", AbslSv(item.TypeName())));
    }
    WINNOW_RETURN_IF_ERROR(heap->ChargeSearch(container.AsString(), item.AsString()));
    return container.AsString().find(item.AsString()) != std::string::npos;
  }
  if (container.is_dict()) return item.is_string() && container.AsDict().Find(item.AsString()) != nullptr;
  if (container.is_list()) {
    for (const Value& element : container.AsList().items) {
      WINNOW_ASSIGN_OR_RETURN(const bool same, Equals(heap, element, item));
      if (same) return true;
    }
    return false;
  }
  if (container.is_undefined()) return false;
  return Error(absl::StrCat("a value of type ", AbslSv(container.TypeName()), " contains nothing"));
}

absl::StatusOr<bool> Compare(Heap* heap, Operator op, const Value& a, const Value& b) {
  if (op == Operator::kEq || op == Operator::kNe) {
    WINNOW_ASSIGN_OR_RETURN(const bool same, Equals(heap, a, b));
    return same == (op == Operator::kEq);
  }
  if (op == Operator::kIn || op == Operator::kNotIn) {
    WINNOW_ASSIGN_OR_RETURN(const bool found, Contains(heap, b, a));
    return found == (op == Operator::kIn);
  }
  WINNOW_ASSIGN_OR_RETURN(const int order, Order(heap, a, b));
  switch (op) {
    case Operator::kLt:
      return order < 0;
    case Operator::kLe:
      return order <= 0;
    case Operator::kGt:
      return order > 0;
    default:
      return order >= 0;
  }
}

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
  return Unsupported(op, a, b);
}

absl::StatusOr<Value> Negate(const Value& a) {
  if (a.is_float()) return Value(-a.AsDouble());
  if (a.is_integral()) return IntArithmetic(Operator::kSub, 0, a.AsInt());
  if (a.is_undefined()) return Error(a.UndefinedMessage());
  return Error(absl::StrCat("a value of type ", AbslSv(a.TypeName()), " has no negative"));
}

absl::StatusOr<Value> GetAttribute(Heap* heap, const Value& object, std::string_view name) {
  if (object.is_undefined()) return Error(absl::StrCat(object.UndefinedMessage(), ", it has no '", AbslSv(name), "'"));
  if (object.is_loop()) return LoopAttribute(heap, &object.AsLoop(), name);
  if (object.is_dict()) {
    const Dict& dict = object.AsDict();
    if (!dict.is_namespace && HasMethod(object, name)) return BoundMethod(heap, object, name);
    const Value* value = dict.Find(name);
    return value != nullptr ? *value : Value::UndefinedNamed(name);
  }
  return BoundMethod(heap, object, name);
}

absl::StatusOr<Value> GetItem(Heap* heap, const Value& object, const Value& key) {
  if (object.is_undefined()) return Error(object.UndefinedMessage());
  if (object.is_list() && key.is_integral()) {
    const std::vector<Value>& items = object.AsList().items;
    const auto count = static_cast<int64_t>(items.size());
    const int64_t index = key.AsInt() < 0 ? key.AsInt() + count : key.AsInt();
    if (index < 0 || index >= count) return Value::UndefinedNamed("list index out of range");
    return items[static_cast<size_t>(index)];
  }
  if (object.is_string() && key.is_integral()) return CharacterAt(heap, object.AsString(), key.AsInt());
  if (object.is_dict() && key.is_string()) {
    if (const Value* value = object.AsDict().Find(key.AsString())) return *value;
  }
  if (key.is_string()) return GetAttribute(heap, object, key.AsString());
  if (key.is_undefined()) return Error(key.UndefinedMessage());
  return Value::UndefinedNamed("item");
}

absl::StatusOr<Value> Slice(Heap* heap, const Value& object, const Value& start, const Value& stop, const Value& step) {
  for (const Value* bound : {&start, &stop, &step}) {
    if (!bound->is_none() && !bound->is_integral()) return Error("slice bounds must be integers");
  }
  if (!object.is_string() && !object.is_list()) {
    if (object.is_undefined()) return Error(object.UndefinedMessage());
    return Error(absl::StrCat("a value of type ", AbslSv(object.TypeName()), " cannot be sliced"));
  }
  std::vector<std::string_view> characters;
  if (object.is_string()) {
    WINNOW_RETURN_IF_ERROR(heap->ChargeWork(object.AsString().size()));
    characters = Characters(object.AsString());
  }
  const auto count = static_cast<int64_t>(object.is_string() ? characters.size() : object.AsList().items.size());
  const int64_t stride = step.is_none() ? 1 : step.AsInt();
  if (stride == 0) return Error("slice step is zero");
  // Python's slice.indices.
  const int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? count : count - 1;
  const auto clamp = [&](const Value& bound, int64_t fallback) {
    if (bound.is_none()) return fallback;
    const int64_t at = bound.AsInt() < 0 ? bound.AsInt() + count : bound.AsInt();
    return std::clamp(at, low, high);
  };
  const int64_t from = clamp(start, stride > 0 ? low : high);
  const int64_t to = clamp(stop, stride > 0 ? high : low);
  std::string text;
  std::vector<Value> items;
  for (int64_t i = from; stride > 0 ? i < to : i > to;) {
    if (object.is_string()) {
      text.append(characters[static_cast<size_t>(i)]);
    } else {
      items.push_back(object.AsList().items[static_cast<size_t>(i)]);
    }
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (object.is_string()) return heap->String(std::move(text));
  WINNOW_RETURN_IF_ERROR(heap->Step(static_cast<int64_t>(items.size())));
  return Value(heap->NewList(std::move(items), object.AsList().is_tuple));
}

absl::StatusOr<std::vector<Value>> Iterate(Heap* heap, const Value& value) {
  if (value.is_undefined()) return std::vector<Value>();
  if (value.is_list()) {
    WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(value.AsList().items.size() * sizeof(Value)));
    return value.AsList().items;
  }
  std::vector<Value> items;
  if (value.is_dict() && !value.AsDict().is_namespace) {
    WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(value.AsDict().entries.size() * 2 * sizeof(Value)));
    for (const auto& [key, item] : value.AsDict().entries) {
      WINNOW_ASSIGN_OR_RETURN(Value text, heap->String(key));
      items.push_back(std::move(text));
    }
    return items;
  }
  if (value.is_string()) {
    WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(CountCodePoints(value.AsString()) * 3 * sizeof(Value)));
    for (const std::string_view character : Characters(value.AsString())) {
      items.push_back(Value::String(std::string(character)));
    }
    return items;
  }
  return Error(absl::StrCat("a value of type ", AbslSv(value.TypeName()), " cannot be iterated over"));
}

}  // namespace winnow::chat_template
