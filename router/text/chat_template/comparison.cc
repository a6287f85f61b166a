#include "router/text/chat_template/comparison.h"

#include <algorithm>
#include <string>

#include "router/text/chat_template/arithmetic.h"
#include "router/text/chat_template/template_error.h"

namespace winnow::chat_template {
namespace {

constexpr int kMaxComparedDepth = 64;

}  // namespace

absl::StatusOr<bool> Equals(Heap* heap, const Value& a, const Value& b, int depth) {
  WINNOW_RETURN_IF_ERROR(heap->Step());
  if (depth > kMaxComparedDepth) return Error("values are nested too deeply to be compared");
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
  if (depth > kMaxComparedDepth) return Error("values are nested too deeply to be compared");
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
  return UnsupportedOperands("<", a, b);
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

}  // namespace winnow::chat_template
