#include "router/text/chat_template/filters.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "common/tokenizer/utf8.h"
#include "router/text/chat_template/arithmetic.h"
#include "router/text/chat_template/sequence_filters.h"
#include "router/text/chat_template/template_error.h"
#include "router/text/chat_template/text_functions.h"
#include "router/text/chat_template/value_text.h"

namespace winnow::chat_template {
namespace {

using Result = absl::StatusOr<Value>;

bool Flag(const Arguments& arguments, size_t position, std::string_view name) {
  const Value* value = arguments.Get(position, name);
  return value != nullptr && value->Truthy();
}

Result Trim(Heap* heap, const Value& input, const Arguments& arguments) {
  WINNOW_ASSIGN_OR_RETURN(const std::string text, ToText(heap, input));
  std::optional<std::string_view> chars;
  if (const Value* value = arguments.Get(0, "chars"); value != nullptr && !value->is_none()) {
    if (!value->is_string()) return Error("trim needs a string");
    chars = value->AsString();
    WINNOW_RETURN_IF_ERROR(heap->ChargeWork(text.size() * chars->size()));
  }
  return heap->String(std::string(StripText(text, chars, true, true)));
}

Result ToJsonFilter(Heap* heap, const Value& input, const Arguments& arguments) {
  JsonStyle style;
  // transformers' order: ensure_ascii, indent, separators, sort_keys.
  style.ensure_ascii = Flag(arguments, 0, "ensure_ascii");
  if (const Value* indent = arguments.Get(1, "indent"); indent != nullptr && !indent->is_none()) {
    if (!indent->is_integral() || indent->AsInt() < 0 || indent->AsInt() > 64) {
      return Error("tojson: indent must be an integer from 0 to 64");
    }
    style.indent = static_cast<int>(indent->AsInt());
  }
  if (const Value* separators = arguments.Get(2, "separators"); separators != nullptr && !separators->is_none()) {
    if (!separators->is_list() || separators->AsList().items.size() != 2 ||
        !separators->AsList().items[0].is_string() || !separators->AsList().items[1].is_string()) {
      return Error("tojson: separators must be a pair of strings");
    }
    style.item_separator = separators->AsList().items[0].AsString();
    style.key_separator = separators->AsList().items[1].AsString();
  }
  style.sort_keys = Flag(arguments, 3, "sort_keys");
  WINNOW_ASSIGN_OR_RETURN(std::string json, ToJson(heap, input, style));
  return heap->String(std::move(json));
}

Result Length(const Value& input) {
  if (input.is_undefined()) return Value(int64_t{0});
  if (input.is_string()) return Value(static_cast<int64_t>(CountCodePoints(input.AsString())));
  if (input.is_list()) return Value(static_cast<int64_t>(input.AsList().items.size()));
  if (input.is_dict()) return Value(static_cast<int64_t>(input.AsDict().entries.size()));
  return Error(absl::StrCat("a value of type ", AbslSv(input.TypeName()), " has no length"));
}

Result Default(const Value& input, const Arguments& arguments) {
  const bool replace = input.is_undefined() || (Flag(arguments, 1, "boolean") && !input.Truthy());
  if (!replace) return input;
  const Value* fallback = arguments.Get(0, "default_value");
  return fallback != nullptr ? *fallback : Value::String("");
}

Result Replace(Heap* heap, const Value& input, const Arguments& arguments) {
  const Value* from = arguments.Get(0, "old");
  const Value* to = arguments.Get(1, "new");
  const Value* count = arguments.Get(2, "count");
  if (from == nullptr || to == nullptr) return Error("replace needs two arguments");
  WINNOW_ASSIGN_OR_RETURN(const std::string text, ToText(heap, input));
  WINNOW_ASSIGN_OR_RETURN(const std::string old_text, ToText(heap, *from));
  WINNOW_ASSIGN_OR_RETURN(const std::string new_text, ToText(heap, *to));
  WINNOW_RETURN_IF_ERROR(heap->ChargeSearch(text, old_text));
  const int64_t limit = count != nullptr && count->is_integral() ? count->AsInt() : -1;
  auto replaced = ReplaceText(text, old_text, new_text, limit, static_cast<size_t>(heap->limits().max_bytes));
  if (!replaced.has_value()) return absl::ResourceExhaustedError("replace makes a text that is too long");
  return heap->String(*std::move(replaced));
}

Result Indent(Heap* heap, const Value& input, const Arguments& arguments) {
  WINNOW_ASSIGN_OR_RETURN(const std::string text, ToText(heap, input));
  std::string indentation(4, ' ');
  if (const Value* width = arguments.Get(0, "width"); width != nullptr) {
    if (width->is_string()) {
      indentation = width->AsString();
    } else if (width->is_integral() && width->AsInt() >= 0 && width->AsInt() <= 1024) {
      indentation.assign(static_cast<size_t>(width->AsInt()), ' ');
    } else {
      return Error("indent: width must be a string or an integer from 0 to 1024");
    }
  }
  const bool blank = Flag(arguments, 2, "blank");
  const std::vector<std::string> lines = SplitLines(text + "\n");
  WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(text.size() * 2));
  std::string out = Flag(arguments, 1, "first") ? indentation : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.push_back('\n');
      if (blank || !lines[i].empty()) {
        WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(indentation.size()));
        out.append(indentation);
      }
    }
    out.append(lines[i]);
  }
  return Value::String(std::move(out));
}

Result Escape(Heap* heap, const Value& input) {
  WINNOW_ASSIGN_OR_RETURN(const std::string text, ToText(heap, input));
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out.append("&amp;");
        break;
      case '<':
        out.append("&lt;");
        break;
      case '>':
        out.append("&gt;");
        break;
      case '\'':
        out.append("&#39;");
        break;
      case '"':
        out.append("&#34;");
        break;
      default:
        out.push_back(c);
    }
  }
  return heap->String(std::move(out));
}

std::optional<double> ParseFloat(std::string_view text) {
  text = StripText(text, std::nullopt, true, true);
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

Result IntFilter(const Value& input, const Arguments& arguments) {
  const Value* given = arguments.Get(0, "default");
  const Value fallback = given != nullptr ? *given : Value(int64_t{0});
  const Value* base_value = arguments.Get(1, "base");
  const int64_t base = base_value != nullptr && base_value->is_integral() ? base_value->AsInt() : 10;
  if (base < 2 || base > 36) return Error("int: base must be from 2 to 36");
  if (input.is_integral()) return Value(input.AsInt());
  std::optional<double> number;
  if (input.is_float()) number = input.AsDouble();
  if (input.is_string()) {
    std::string_view text = StripText(input.AsString(), std::nullopt, true, true);
    if (text.starts_with('+')) text.remove_prefix(1);
    int64_t value = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value, static_cast<int>(base));
    if (!text.empty() && result.ec == std::errc() && result.ptr == text.data() + text.size()) return Value(value);
    number = ParseFloat(text);
  }
  if (!number.has_value() || !(std::abs(*number) < 9.2e18)) return fallback;
  return Value(static_cast<int64_t>(*number));
}

Result FloatFilter(const Value& input, const Arguments& arguments) {
  if (input.is_number()) return Value(input.AsDouble());
  if (input.is_string()) {
    if (const auto number = ParseFloat(input.AsString())) return Value(*number);
  }
  const Value* fallback = arguments.Get(0, "default");
  return fallback != nullptr ? *fallback : Value(0.0);
}

Result Abs(const Value& input) {
  if (input.is_float()) return Value(std::abs(input.AsDouble()));
  if (!input.is_integral()) return Error("abs needs a number");
  return input.AsInt() < 0 ? Negate(input) : Result(Value(input.AsInt()));
}

Result Round(const Value& input, const Arguments& arguments) {
  if (!input.is_number()) return Error("round needs a number");
  if (input.is_integral() && arguments.positional.empty() && arguments.named.empty()) return Value(input.AsInt());
  const Value* precision = arguments.Get(0, "precision");
  const Value* method = arguments.Get(1, "method");
  const int64_t digits = precision != nullptr && precision->is_integral() ? precision->AsInt() : 0;
  if (digits < -300 || digits > 300) return Error("round: precision is out of range");
  const std::string_view how =
      method != nullptr && method->is_string() ? std::string_view(method->AsString()) : "common";
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = input.AsDouble() * scale;
  if (how == "common") return Value(std::nearbyint(scaled) / scale);
  if (how == "ceil") return Value(std::ceil(scaled) / scale);
  if (how == "floor") return Value(std::floor(scaled) / scale);
  return Error("round: method must be common, ceil or floor");
}

// Filters that turn text into text.
Result TextFilter(Heap* heap, std::string_view name, const Value& input) {
  WINNOW_ASSIGN_OR_RETURN(std::string text, ToText(heap, input));
  WINNOW_RETURN_IF_ERROR(heap->ChargeWork(text.size()));
  if (name == "upper") return heap->String(UpperText(text));
  if (name == "lower") return heap->String(LowerText(text));
  if (name == "title") return heap->String(TitleFilterText(text));
  if (name == "capitalize") return heap->String(CapitalizeText(text));
  if (name == "wordcount") return Value(static_cast<int64_t>(SplitWords(text, -1).size()));
  return heap->String(std::move(text));  // string, safe
}

}  // namespace

absl::StatusOr<Value> ApplyFilter(Heap* heap, std::string_view name, const Value& input, const Arguments& arguments) {
  WINNOW_RETURN_IF_ERROR(heap->Step());
  if (name == "trim") return Trim(heap, input, arguments);
  if (name == "tojson") return ToJsonFilter(heap, input, arguments);
  if (name == "length" || name == "count") return Length(input);
  if (name == "default" || name == "d") return Default(input, arguments);
  if (name == "replace") return Replace(heap, input, arguments);
  if (name == "indent") return Indent(heap, input, arguments);
  if (name == "escape" || name == "e" || name == "forceescape") return Escape(heap, input);
  if (name == "int") return IntFilter(input, arguments);
  if (name == "float") return FloatFilter(input, arguments);
  if (name == "abs") return Abs(input);
  if (name == "round") return Round(input, arguments);
  constexpr std::array<std::string_view, 7> kText = {"upper",     "lower",  "title", "capitalize",
                                                     "wordcount", "string", "safe"};
  if (std::find(kText.begin(), kText.end(), name) != kText.end()) return TextFilter(heap, name, input);
  return ApplySequenceFilter(heap, name, input, arguments);
}

}  // namespace winnow::chat_template
