#include "router/text/chat_template/methods.h"

#include <algorithm>
#include <array>

#include "common/tokenizer/unicode.h"
#include "common/tokenizer/utf8.h"
#include "router/text/chat_template/comparison.h"
#include "router/text/chat_template/item_access.h"
#include "router/text/chat_template/template_error.h"
#include "router/text/chat_template/text_functions.h"
#include "router/text/chat_template/value_text.h"

namespace winnow::chat_template {
namespace {

constexpr std::array<std::string_view, 33> kStringMethods = {
    "strip",      "lstrip",    "rstrip",       "split",        "rsplit",  "splitlines", "startswith",
    "endswith",   "upper",     "lower",        "replace",      "title",   "capitalize", "join",
    "find",       "rfind",     "count",        "isdigit",      "isalpha", "isalnum",    "isspace",
    "isupper",    "islower",   "removeprefix", "removesuffix", "zfill",   "index",      "partition",
    "rpartition", "isnumeric", "isdecimal",    "ljust",        "rjust"};
constexpr std::array<std::string_view, 7> kListMethods = {"append", "extend", "insert", "pop",
                                                          "index",  "count",  "reverse"};
constexpr std::array<std::string_view, 6> kDictMethods = {"get", "items", "keys", "values", "update", "pop"};

template <size_t n>
bool OneOf(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

absl::StatusOr<std::string_view> StringArgument(const Arguments& arguments, size_t position, std::string_view method) {
  const Value* value = arguments.Get(position, "");
  if (value == nullptr || !value->is_string()) {
    return Error(absl::StrCat(AbslSv(method), "() needs a string as argument ", position + 1));
  }
  return std::string_view(value->AsString());
}

absl::StatusOr<int64_t> IntArgument(const Arguments& arguments, size_t position, std::string_view name,
                                    int64_t fallback) {
  const Value* value = arguments.Get(position, name);
  if (value == nullptr || value->is_none()) return fallback;
  if (!value->is_integral()) return Error(absl::StrCat("argument ", AbslSv(name), " must be an integer"));
  return value->AsInt();
}

absl::StatusOr<Value> StringList(Heap* heap, std::vector<std::string> parts, bool is_tuple = false) {
  List* list = heap->NewList({}, is_tuple);
  for (std::string& part : parts) {
    WINNOW_ASSIGN_OR_RETURN(Value value, heap->String(std::move(part)));
    list->items.push_back(std::move(value));
  }
  return Value(list);
}

template <typename Predicate>
bool AllCharacters(std::string_view s, const Predicate& predicate) {
  for (size_t pos = 0; pos < s.size();) {
    if (!predicate(NextCodePoint(s, &pos))) return false;
  }
  return !s.empty();
}

absl::StatusOr<Value> StripMethod(Heap* heap, std::string_view s, std::string_view name, const Arguments& arguments) {
  std::optional<std::string_view> chars;
  if (const Value* value = arguments.Get(0, "chars"); value != nullptr && !value->is_none()) {
    if (!value->is_string()) return Error(absl::StrCat(AbslSv(name), "() needs a string"));
    chars = value->AsString();
    WINNOW_RETURN_IF_ERROR(heap->ChargeWork(std::min(s.size(), size_t{1} << 20) * chars->size()));
  }
  return heap->String(std::string(StripText(s, chars, name != "rstrip", name != "lstrip")));
}

absl::StatusOr<Value> SplitMethod(Heap* heap, std::string_view s, bool from_right, const Arguments& arguments) {
  WINNOW_ASSIGN_OR_RETURN(const int64_t max_splits, IntArgument(arguments, 1, "maxsplit", -1));
  const Value* separator = arguments.Get(0, "sep");
  if (separator == nullptr || separator->is_none()) {
    if (from_right && max_splits >= 0) return Error("rsplit() with maxsplit needs a separator");
    WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(s.size() * 16));
    return StringList(heap, SplitWords(s, max_splits));
  }
  if (!separator->is_string() || separator->AsString().empty()) return Error("split() needs a non-empty separator");
  WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(s.size()));
  WINNOW_RETURN_IF_ERROR(heap->ChargeSearch(s, separator->AsString()));
  return StringList(heap, SplitText(s, separator->AsString(), max_splits, from_right));
}

// startswith and endswith, with one affix or a tuple of them.
absl::StatusOr<Value> AffixMethod(std::string_view s, bool prefix, const Arguments& arguments) {
  const Value* affix = arguments.Get(0, prefix ? "prefix" : "suffix");
  if (affix == nullptr) return Error("startswith() and endswith() need an argument");
  std::vector<Value> affixes = affix->is_list() ? affix->AsList().items : std::vector<Value>{*affix};
  for (const Value& each : affixes) {
    if (!each.is_string()) return Error("startswith() and endswith() need a string or a tuple of strings");
    if (prefix ? s.starts_with(each.AsString()) : s.ends_with(each.AsString())) return Value(true);
  }
  return Value(false);
}

absl::StatusOr<Value> FindMethod(Heap* heap, std::string_view s, std::string_view name, const Arguments& arguments) {
  WINNOW_ASSIGN_OR_RETURN(const std::string_view needle, StringArgument(arguments, 0, name));
  WINNOW_RETURN_IF_ERROR(heap->ChargeSearch(s, needle));
  if (name == "count") {
    int64_t count = 0;
    if (needle.empty()) return Value(static_cast<int64_t>(CountCodePoints(s)) + 1);
    for (size_t at = s.find(needle); at != s.npos; at = s.find(needle, at + needle.size())) ++count;
    return Value(count);
  }
  const size_t at = name == "rfind" ? s.rfind(needle) : s.find(needle);
  if (at == s.npos) {
    if (name == "index") return Error("substring not found");
    return Value(int64_t{-1});
  }
  return Value(static_cast<int64_t>(CountCodePoints(s.substr(0, at))));
}

absl::StatusOr<Value> ReplaceMethod(Heap* heap, std::string_view s, const Arguments& arguments) {
  WINNOW_ASSIGN_OR_RETURN(const std::string_view from, StringArgument(arguments, 0, "replace"));
  WINNOW_ASSIGN_OR_RETURN(const std::string_view to, StringArgument(arguments, 1, "replace"));
  WINNOW_ASSIGN_OR_RETURN(const int64_t count, IntArgument(arguments, 2, "count", -1));
  WINNOW_RETURN_IF_ERROR(heap->ChargeSearch(s, from));
  auto replaced = ReplaceText(s, from, to, count, static_cast<size_t>(heap->limits().max_bytes));
  if (!replaced.has_value()) return absl::ResourceExhaustedError("replace() makes a text that is too long");
  return heap->String(*std::move(replaced));
}

absl::StatusOr<Value> JoinMethod(Heap* heap, std::string_view separator, const Arguments& arguments) {
  if (arguments.positional.size() != 1) return Error("join() needs one argument");
  WINNOW_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(heap, arguments.positional[0]));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_string()) return Error(absl::StrCat("join() needs strings, item ", i, " is none"));
    WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(separator.size() + items[i].AsString().size()));
    if (i > 0) out.append(separator);
    out.append(items[i].AsString());
  }
  return Value::String(std::move(out));
}

absl::StatusOr<Value> PartitionMethod(Heap* heap, std::string_view s, bool last, const Arguments& arguments) {
  WINNOW_ASSIGN_OR_RETURN(const std::string_view separator, StringArgument(arguments, 0, "partition"));
  if (separator.empty()) return Error("partition() needs a non-empty separator");
  const size_t at = last ? s.rfind(separator) : s.find(separator);
  std::vector<std::string> parts;
  if (at == s.npos) {
    parts = last ? std::vector<std::string>{"", "", std::string(s)} : std::vector<std::string>{std::string(s), "", ""};
  } else {
    parts = {std::string(s.substr(0, at)), std::string(separator), std::string(s.substr(at + separator.size()))};
  }
  return StringList(heap, std::move(parts), /*is_tuple=*/true);
}

absl::StatusOr<Value> PadMethod(Heap* heap, std::string_view s, std::string_view name, const Arguments& arguments) {
  WINNOW_ASSIGN_OR_RETURN(const int64_t width, IntArgument(arguments, 0, "width", 0));
  const auto length = static_cast<int64_t>(CountCodePoints(s));
  if (width > heap->limits().max_bytes) return absl::ResourceExhaustedError("the padded text is too long");
  std::string fill = name == "zfill" ? "0" : " ";
  if (const Value* value = arguments.Get(1, "fillchar"); value != nullptr && name != "zfill") {
    if (!value->is_string() || CountCodePoints(value->AsString()) != 1) return Error("fillchar must be one character");
    fill = value->AsString();
  }
  WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(static_cast<size_t>(std::max<int64_t>(width - length, 0)) * fill.size()));
  std::string padding;
  for (int64_t i = length; i < width; ++i) padding.append(fill);
  if (name == "ljust") return heap->String(std::string(s) + padding);
  const bool sign = name == "zfill" && !s.empty() && (s[0] == '-' || s[0] == '+');
  return heap->String(std::string(s.substr(0, sign ? 1 : 0)) + padding + std::string(s.substr(sign ? 1 : 0)));
}

absl::StatusOr<Value> CaseTest(std::string_view s, bool upper) {
  return Value(s == (upper ? UpperText(s) : LowerText(s)) && UpperText(s) != LowerText(s));
}

absl::StatusOr<Value> StringMethod(Heap* heap, std::string_view s, std::string_view name, const Arguments& arguments) {
  if (name == "strip" || name == "lstrip" || name == "rstrip") return StripMethod(heap, s, name, arguments);
  if (name == "split" || name == "rsplit") return SplitMethod(heap, s, name == "rsplit", arguments);
  if (name == "startswith" || name == "endswith") return AffixMethod(s, name == "startswith", arguments);
  if (name == "find" || name == "rfind" || name == "index" || name == "count") {
    return FindMethod(heap, s, name, arguments);
  }
  if (name == "replace") return ReplaceMethod(heap, s, arguments);
  if (name == "join") return JoinMethod(heap, s, arguments);
  if (name == "partition" || name == "rpartition") return PartitionMethod(heap, s, name == "rpartition", arguments);
  if (name == "zfill" || name == "ljust" || name == "rjust") return PadMethod(heap, s, name, arguments);
  WINNOW_RETURN_IF_ERROR(heap->ChargeWork(s.size()));
  if (name == "splitlines") return StringList(heap, SplitLines(s));
  if (name == "upper") return heap->String(UpperText(s));
  if (name == "lower") return heap->String(LowerText(s));
  if (name == "title") return heap->String(TitleText(s));
  if (name == "capitalize") return heap->String(CapitalizeText(s));
  if (name == "isupper" || name == "islower") return CaseTest(s, name == "isupper");
  if (name == "isspace") return Value(AllCharacters(s, IsPythonSpace));
  if (name == "isdigit" || name == "isnumeric" || name == "isdecimal") return Value(AllCharacters(s, IsUnicodeNumeric));
  const auto is_letter = [](char32_t c) { return IsWordCharacter(c) && !IsUnicodeNumeric(c) && c != '_'; };
  if (name == "isalpha") return Value(AllCharacters(s, is_letter));
  if (name == "isalnum") return Value(AllCharacters(s, [](char32_t c) { return IsWordCharacter(c) && c != '_'; }));
  WINNOW_ASSIGN_OR_RETURN(const std::string_view affix, StringArgument(arguments, 0, name));
  if (name == "removeprefix") return heap->String(std::string(s.substr(s.starts_with(affix) ? affix.size() : 0)));
  return heap->String(std::string(s.substr(0, s.size() - (s.ends_with(affix) ? affix.size() : 0))));
}

absl::StatusOr<Value> ListMethod(Heap* heap, List* list, std::string_view name, const Arguments& arguments) {
  WINNOW_RETURN_IF_ERROR(heap->Step());
  const Value* argument = arguments.Get(0, "");
  if (list->is_tuple && name != "index" && name != "count") return Error("a tuple cannot be changed");
  if (name == "reverse") {
    WINNOW_RETURN_IF_ERROR(heap->Step(static_cast<int64_t>(list->items.size())));
    std::reverse(list->items.begin(), list->items.end());
    return Value(None{});
  }
  if (name == "pop") {
    WINNOW_ASSIGN_OR_RETURN(int64_t index, IntArgument(arguments, 0, "index", -1));
    const auto count = static_cast<int64_t>(list->items.size());
    if (index < 0) index += count;
    if (index < 0 || index >= count) return Error("pop() index out of range");
    WINNOW_RETURN_IF_ERROR(heap->Step((count - index) / 16));
    Value value = list->items[static_cast<size_t>(index)];
    list->items.erase(list->items.begin() + index);
    return value;
  }
  if (argument == nullptr) return Error(absl::StrCat(AbslSv(name), "() needs an argument"));
  WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(sizeof(Value)));
  if (name == "append") {
    list->items.push_back(*argument);
    return Value(None{});
  }
  if (name == "extend") {
    WINNOW_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(heap, *argument));
    list->items.insert(list->items.end(), items.begin(), items.end());
    return Value(None{});
  }
  if (name == "insert") {
    if (!argument->is_integral() || arguments.positional.size() != 2)
      return Error("insert() needs an index and a value");
    const auto count = static_cast<int64_t>(list->items.size());
    const int64_t index = argument->AsInt() < 0 ? argument->AsInt() + count : argument->AsInt();
    WINNOW_RETURN_IF_ERROR(heap->Step(count / 16));
    list->items.insert(list->items.begin() + std::clamp<int64_t>(index, 0, count), arguments.positional[1]);
    return Value(None{});
  }
  int64_t count = 0;
  for (size_t i = 0; i < list->items.size(); ++i) {
    WINNOW_ASSIGN_OR_RETURN(const bool same, Equals(heap, list->items[i], *argument));
    if (same && name == "index") return Value(static_cast<int64_t>(i));
    count += same;
  }
  if (name == "index") return Error("index() found no such item");
  return Value(count);
}

absl::StatusOr<Value> DictMethod(Heap* heap, Dict* dict, std::string_view name, const Arguments& arguments) {
  WINNOW_RETURN_IF_ERROR(heap->Step());
  if (name == "get") {
    const Value* key = arguments.Get(0, "key");
    if (key == nullptr) return Error("get() needs a key");
    const Value* value = key->is_string() ? dict->Find(key->AsString()) : nullptr;
    if (value != nullptr) return *value;
    const Value* fallback = arguments.Get(1, "default");
    return fallback != nullptr ? *fallback : Value(None{});
  }
  if (name == "update") {
    const Value* other = arguments.Get(0, "");
    if (other != nullptr && !other->is_dict()) return Error("update() needs a dict");
    std::vector<std::pair<std::string, Value>> entries = arguments.named;
    if (other != nullptr)
      entries.insert(entries.begin(), other->AsDict().entries.begin(), other->AsDict().entries.end());
    for (auto& [key, value] : entries) {
      WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(2 * key.size() + 2 * sizeof(Value)));
      dict->Set(key, std::move(value));
    }
    return Value(None{});
  }
  if (name == "pop") return Error("pop() of a dict is not supported");
  List* list = heap->NewList();
  WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(dict->entries.size() * 3 * sizeof(Value)));
  for (const auto& [key, value] : dict->entries) {
    if (name == "keys") {
      list->items.push_back(Value::String(key));
    } else if (name == "values") {
      list->items.push_back(value);
    } else {
      list->items.push_back(Value(heap->NewList({Value::String(key), value}, /*is_tuple=*/true)));
    }
  }
  return Value(list);
}

}  // namespace

bool HasMethod(const Value& object, std::string_view name) {
  if (object.is_string()) return OneOf(kStringMethods, name);
  if (object.is_list()) return OneOf(kListMethods, name);
  if (object.is_dict()) return !object.AsDict().is_namespace && OneOf(kDictMethods, name);
  return false;
}

absl::StatusOr<Value> CallMethod(Heap* heap, const Value& object, std::string_view name, const Arguments& arguments) {
  if (object.is_string()) return StringMethod(heap, object.AsString(), name, arguments);
  if (object.is_list()) return ListMethod(heap, &object.AsList(), name, arguments);
  if (object.is_dict()) return DictMethod(heap, &object.AsDict(), name, arguments);
  return Error(absl::StrCat("a value of type ", AbslSv(object.TypeName()), " has no method '", AbslSv(name), "'"));
}

}  // namespace winnow::chat_template
