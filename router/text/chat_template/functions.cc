#include "router/text/chat_template/functions.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "common/tokenizer/utf8.h"
#include "router/text/chat_template/template_error.h"
#include "router/text/chat_template/value_text.h"

namespace winnow::chat_template {
namespace {

using Result = absl::StatusOr<Value>;

constexpr int64_t kMaxRange = 100'000;  // Jinja's sandbox has the same
constexpr std::array<std::string_view, 5> kFunctions = {"range", "namespace", "dict", "raise_exception",
                                                        "strftime_now"};

Result Range(Heap* heap, const Arguments& arguments) {
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
  WINNOW_RETURN_IF_ERROR(heap->Step(static_cast<int64_t>(items.size())));
  return Value(heap->NewList(std::move(items)));
}

// namespace and dict
Result NewDictOf(Heap* heap, std::string_view name, const Arguments& arguments) {
  Dict* dict = heap->NewDict();
  dict->is_namespace = name == "namespace";
  if (const Value* source = arguments.Get(0, ""); source != nullptr) {
    if (!source->is_dict()) return Error(absl::StrCat(AbslSv(name), "() takes a dict or named values"));
    for (const auto& [key, value] : source->AsDict().entries) {
      WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(2 * key.size() + 2 * sizeof(Value)));
      dict->Set(key, value);
    }
  }
  for (const auto& [key, value] : arguments.named) dict->Set(key, value);
  return Value(dict);
}

Result StrftimeNow(Heap* heap, std::time_t now, const Arguments& arguments) {
  const Value* format = arguments.Get(0, "format");
  if (format == nullptr || !format->is_string()) return Error("strftime_now() needs a format");
  if (format->AsString().size() > 256) return Error("strftime_now(): the format is too long");
  if (format->AsString().empty()) return Value::String("");
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 4096> buffer;
  const size_t bytes = std::strftime(buffer.data(), buffer.size(), format->AsString().c_str(), &local);
  const std::string_view text(buffer.data(), bytes);
  if (FindInvalidUtf8(text) != text.npos) return Error("strftime_now(): the result is not UTF-8");
  return heap->String(std::string(text));
}

Result RaiseException(Heap* heap, const Arguments& arguments) {
  std::string message = "raise_exception";
  if (const Value* value = arguments.Get(0, "message")) {
    WINNOW_ASSIGN_OR_RETURN(message, ToText(heap, *value));
  }
  return Error(message);
}

}  // namespace

bool IsFunction(std::string_view name) {
  return std::find(kFunctions.begin(), kFunctions.end(), name) != kFunctions.end();
}

Result CallFunction(Heap* heap, std::time_t now, std::string_view name, const Arguments& arguments) {
  if (name == "raise_exception") return RaiseException(heap, arguments);
  if (name == "strftime_now") return StrftimeNow(heap, now, arguments);
  if (name == "range") return Range(heap, arguments);
  return NewDictOf(heap, name, arguments);
}

}  // namespace winnow::chat_template
