#include "router/text/chat_template/sequence_filters.h"

#include <algorithm>
#include <charconv>

#include "router/text/chat_template/arithmetic.h"
#include "router/text/chat_template/comparison.h"
#include "router/text/chat_template/filters.h"
#include "router/text/chat_template/item_access.h"
#include "router/text/chat_template/methods.h"
#include "router/text/chat_template/template_error.h"
#include "router/text/chat_template/text_functions.h"
#include "router/text/chat_template/value_tests.h"
#include "router/text/chat_template/value_text.h"

namespace winnow::chat_template {
namespace {

using Result = absl::StatusOr<Value>;

bool IsSet(const Arguments& arguments, size_t position, std::string_view name) {
  const Value* value = arguments.Get(position, name);
  return value != nullptr && value->Truthy();
}

// item["a"]["b"] for the attribute "a.b"; numbers index lists.
Result AttributePath(Heap* heap, Value item, const Value& attribute) {
  if (attribute.is_integral()) return GetItem(heap, item, attribute);
  if (!attribute.is_string()) return Error("an attribute must be a string or an integer");
  for (const std::string& part : SplitText(attribute.AsString(), ".", -1, false)) {
    int64_t index = 0;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = !part.empty() && parsed.ec == std::errc() && parsed.ptr == part.data() + part.size();
    WINNOW_ASSIGN_OR_RETURN(item, GetItem(heap, item, is_index ? Value(index) : Value::String(part)));
  }
  return item;
}

// What is compared for an element: its attribute, if one is named, and text without its case unless case matters.
Result SortKey(Heap* heap, const Value& item, const Value* attribute, bool case_sensitive) {
  Value key = item;
  if (attribute != nullptr && !attribute->is_none()) {
    WINNOW_ASSIGN_OR_RETURN(key, AttributePath(heap, item, *attribute));
  }
  if (key.is_string() && !case_sensitive) return heap->String(LowerText(key.AsString()));
  return key;
}

// Merge sort by keys; std::sort must not be given a comparison that can fail.
absl::Status SortByKeys(Heap* heap, std::vector<std::pair<Value, Value>>* keyed, bool reverse) {
  std::vector<std::pair<Value, Value>> merged(keyed->size());
  for (size_t width = 1; width < keyed->size(); width *= 2) {
    for (size_t begin = 0; begin < keyed->size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, keyed->size());
      const size_t end = std::min(begin + 2 * width, keyed->size());
      for (size_t left = begin, right = middle, out = begin; out < end; ++out) {
        bool take_left = right >= end;
        if (left < middle && right < end) {
          WINNOW_ASSIGN_OR_RETURN(const int order, Order(heap, (*keyed)[left].first, (*keyed)[right].first));
          take_left = reverse ? order >= 0 : order <= 0;
        }
        merged[out] = std::move((*keyed)[take_left ? left++ : right++]);
      }
    }
    keyed->swap(merged);
  }
  return absl::OkStatus();
}

Result SortValues(Heap* heap, const std::vector<Value>& items, const Value* attribute, bool case_sensitive,
                  bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) {
    WINNOW_ASSIGN_OR_RETURN(Value key, SortKey(heap, item, attribute, case_sensitive));
    keyed.emplace_back(std::move(key), item);
  }
  WINNOW_RETURN_IF_ERROR(SortByKeys(heap, &keyed, reverse));
  List* list = heap->NewList();
  for (auto& [key, item] : keyed) list->items.push_back(std::move(item));
  return Value(list);
}

Result Sort(Heap* heap, const Value& input, const Arguments& arguments) {
  WINNOW_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(heap, input));
  return SortValues(heap, items, arguments.Get(2, "attribute"), IsSet(arguments, 1, "case_sensitive"),
                    IsSet(arguments, 0, "reverse"));
}

Result DictSort(Heap* heap, const Value& input, const Arguments& arguments) {
  if (!input.is_dict()) return Error("dictsort needs a dict");
  const Value* by = arguments.Get(1, "by");
  const bool by_value = by != nullptr && by->is_string() && by->AsString() == "value";
  const Value position(int64_t{by_value ? 1 : 0});
  WINNOW_ASSIGN_OR_RETURN(const Value pairs, CallMethod(heap, input, "items", {}));
  return SortValues(heap, pairs.AsList().items, &position, IsSet(arguments, 0, "case_sensitive"),
                    IsSet(arguments, 2, "reverse"));
}

Result Unique(Heap* heap, const Value& input, const Arguments& arguments) {
  WINNOW_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(heap, input));
  std::vector<Value> keys;
  List* list = heap->NewList();
  for (const Value& item : items) {
    WINNOW_ASSIGN_OR_RETURN(Value key,
                            SortKey(heap, item, arguments.Get(1, "attribute"), IsSet(arguments, 0, "case_sensitive")));
    bool seen = false;
    for (const Value& other : keys) {
      WINNOW_ASSIGN_OR_RETURN(seen, Equals(heap, key, other));
      if (seen) break;
    }
    if (seen) continue;
    keys.push_back(std::move(key));
    list->items.push_back(item);
  }
  return Value(list);
}

// min and max
Result Extreme(Heap* heap, const Value& input, const Arguments& arguments, bool want_max) {
  WINNOW_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(heap, input));
  Value best, best_key;
  for (size_t i = 0; i < items.size(); ++i) {
    WINNOW_ASSIGN_OR_RETURN(
        Value key, SortKey(heap, items[i], arguments.Get(1, "attribute"), IsSet(arguments, 0, "case_sensitive")));
    if (i > 0) {
      WINNOW_ASSIGN_OR_RETURN(const int order, Order(heap, key, best_key));
      if (want_max ? order <= 0 : order >= 0) continue;
    }
    best = items[i];
    best_key = std::move(key);
  }
  return best;
}

Result Sum(Heap* heap, const Value& input, const Arguments& arguments) {
  WINNOW_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(heap, input));
  const Value* attribute = arguments.Get(0, "attribute");
  const Value* start = arguments.Get(1, "start");
  Value total = start != nullptr ? *start : Value(int64_t{0});
  for (const Value& item : items) {
    Value term = item;
    if (attribute != nullptr && !attribute->is_none()) {
      WINNOW_ASSIGN_OR_RETURN(term, AttributePath(heap, item, *attribute));
    }
    WINNOW_ASSIGN_OR_RETURN(total, Arithmetic(heap, Operator::kAdd, total, term));
  }
  return total;
}

Result Join(Heap* heap, const Value& input, const Arguments& arguments) {
  WINNOW_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(heap, input));
  std::string separator;
  if (const Value* value = arguments.Get(0, "d")) {
    WINNOW_ASSIGN_OR_RETURN(separator, ToText(heap, *value));
  }
  const Value* attribute = arguments.Get(1, "attribute");
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (attribute != nullptr && !attribute->is_none()) {
      WINNOW_ASSIGN_OR_RETURN(item, AttributePath(heap, item, *attribute));
    }
    WINNOW_ASSIGN_OR_RETURN(const std::string text, ToText(heap, item));
    WINNOW_RETURN_IF_ERROR(heap->ChargeBytes(separator.size() + text.size()));
    if (i > 0) out.append(separator);
    out.append(text);
  }
  return Value::String(std::move(out));
}

Result Map(Heap* heap, const Value& input, const Arguments& arguments) {
  WINNOW_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(heap, input));
  const Value* attribute = arguments.positional.empty() ? arguments.Get(0, "attribute") : nullptr;
  const Value* fallback = arguments.positional.empty() ? arguments.Get(1, "default") : nullptr;
  Arguments rest;
  std::string filter;
  if (attribute == nullptr) {
    if (arguments.positional.empty() || !arguments.positional[0].is_string()) {
      return Error("map needs the name of a filter or attribute=");
    }
    filter = arguments.positional[0].AsString();
    rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
    rest.named = arguments.named;
  }
  List* list = heap->NewList();
  for (const Value& item : items) {
    WINNOW_RETURN_IF_ERROR(heap->Step());
    Value mapped;
    if (attribute != nullptr) {
      WINNOW_ASSIGN_OR_RETURN(mapped, AttributePath(heap, item, *attribute));
      if (mapped.is_undefined() && fallback != nullptr) mapped = *fallback;
    } else {
      WINNOW_ASSIGN_OR_RETURN(mapped, ApplyFilter(heap, filter, item, rest));
    }
    list->items.push_back(std::move(mapped));
  }
  return Value(list);
}

// select, reject, selectattr, rejectattr
Result Select(Heap* heap, const Value& input, const Arguments& arguments, bool keep, bool by_attribute) {
  WINNOW_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(heap, input));
  const size_t test_at = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty()) return Error("selectattr and rejectattr need an attribute");
  Arguments rest;
  std::string test;
  if (arguments.positional.size() > test_at) {
    if (!arguments.positional[test_at].is_string()) return Error("the test's name must be a string");
    test = arguments.positional[test_at].AsString();
    rest.positional.assign(arguments.positional.begin() + static_cast<ptrdiff_t>(test_at) + 1,
                           arguments.positional.end());
  }
  List* list = heap->NewList();
  for (const Value& item : items) {
    WINNOW_RETURN_IF_ERROR(heap->Step());
    Value subject = item;
    if (by_attribute) {
      WINNOW_ASSIGN_OR_RETURN(subject, AttributePath(heap, item, arguments.positional[0]));
    }
    bool passes = subject.Truthy();
    if (!test.empty()) {
      WINNOW_ASSIGN_OR_RETURN(passes, ApplyTest(heap, test, subject, rest));
    }
    if (passes == keep) list->items.push_back(item);
  }
  return Value(list);
}

Result Reverse(Heap* heap, const Value& input) {
  const Value none{None{}};
  if (input.is_string()) return Slice(heap, input, none, none, Value(int64_t{-1}));
  WINNOW_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(heap, input));
  std::reverse(items.begin(), items.end());
  return Value(heap->NewList(std::move(items)));
}

Result FirstOrLast(Heap* heap, const Value& input, bool first) {
  if (input.is_list()) {
    const std::vector<Value>& items = input.AsList().items;
    if (items.empty()) return Value::UndefinedNamed("item of an empty sequence");
    return first ? items.front() : items.back();
  }
  WINNOW_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(heap, input));
  if (items.empty()) return Value::UndefinedNamed("item of an empty sequence");
  return first ? items.front() : items.back();
}

}  // namespace

absl::StatusOr<Value> ApplySequenceFilter(Heap* heap, std::string_view name, const Value& input,
                                          const Arguments& arguments) {
  if (name == "list") {
    WINNOW_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(heap, input));
    return Value(heap->NewList(std::move(items)));
  }
  if (name == "items") {
    if (input.is_undefined()) return Value(heap->NewList());
    if (!input.is_dict() || input.AsDict().is_namespace) return Error("items needs a dict");
    return CallMethod(heap, input, name, {});
  }
  if (name == "first" || name == "last") return FirstOrLast(heap, input, name == "first");
  if (name == "join") return Join(heap, input, arguments);
  if (name == "map") return Map(heap, input, arguments);
  if (name == "select" || name == "reject") return Select(heap, input, arguments, name == "select", false);
  if (name == "selectattr" || name == "rejectattr") return Select(heap, input, arguments, name == "selectattr", true);
  if (name == "sort") return Sort(heap, input, arguments);
  if (name == "dictsort") return DictSort(heap, input, arguments);
  if (name == "unique") return Unique(heap, input, arguments);
  if (name == "reverse") return Reverse(heap, input);
  if (name == "min" || name == "max") return Extreme(heap, input, arguments, name == "max");
  if (name == "sum") return Sum(heap, input, arguments);
  return Error(absl::StrCat("no filter named '", AbslSv(name), "'"));
}

}  // namespace winnow::chat_template
