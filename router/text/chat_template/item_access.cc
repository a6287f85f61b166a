#include "router/text/chat_template/item_access.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/tokenizer/utf8.h"
#include "router/text/chat_template/methods.h"
#include "router/text/chat_template/template_error.h"
#include "router/text/chat_template/text_functions.h"

namespace winnow::chat_template {
namespace {

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
