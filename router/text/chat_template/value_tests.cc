#include "router/text/chat_template/value_tests.h"

#include <array>
#include <utility>

#include "router/text/chat_template/comparison.h"
#include "router/text/chat_template/template_error.h"
#include "router/text/chat_template/text_functions.h"

namespace winnow::chat_template {
namespace {

std::optional<Operator> ComparisonNamed(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Operator>, 18> kNames = {{{"equalto", Operator::kEq},
                                                                             {"eq", Operator::kEq},
                                                                             {"==", Operator::kEq},
                                                                             {"ne", Operator::kNe},
                                                                             {"!=", Operator::kNe},
                                                                             {"lt", Operator::kLt},
                                                                             {"lessthan", Operator::kLt},
                                                                             {"<", Operator::kLt},
                                                                             {"le", Operator::kLe},
                                                                             {"<=", Operator::kLe},
                                                                             {"gt", Operator::kGt},
                                                                             {"greaterthan", Operator::kGt},
                                                                             {">", Operator::kGt},
                                                                             {"ge", Operator::kGe},
                                                                             {">=", Operator::kGe},
                                                                             {"in", Operator::kIn},
                                                                             {"contained_in", Operator::kIn},
                                                                             {"not_in", Operator::kNotIn}}};
  for (const auto& [text, op] : kNames) {
    if (text == name) return op;
  }
  return std::nullopt;
}

absl::StatusOr<int64_t> Integer(const Value& value, std::string_view test) {
  if (value.is_undefined()) return Error(value.UndefinedMessage());
  if (!value.is_integral()) return Error(absl::StrCat("test '", AbslSv(test), "' needs an integer"));
  return value.AsInt();
}

}  // namespace

absl::StatusOr<bool> ApplyTest(Heap* heap, std::string_view name, const Value& value, const Arguments& arguments) {
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.is_string();
  if (name == "mapping") return value.is_dict() && !value.AsDict().is_namespace;
  if (name == "number") return value.is_number();
  if (name == "integer") return value.is_int();
  if (name == "float") return value.is_float();
  if (name == "boolean") return value.is_bool();
  if (name == "true") return value.is_bool() && value.AsBool();
  if (name == "false") return value.is_bool() && !value.AsBool();
  if (name == "callable") return value.is_callable();
  // Undefined can be iterated over and has a length.
  if (name == "iterable" || name == "sequence") {
    return value.is_list() || value.is_string() || value.is_undefined() ||
           (value.is_dict() && !value.AsDict().is_namespace);
  }
  if (name == "escaped") return false;
  if (name == "odd" || name == "even") {
    WINNOW_ASSIGN_OR_RETURN(const int64_t i, Integer(value, name));
    return (i % 2 != 0) == (name == "odd");
  }
  if (name == "upper" || name == "lower") {
    if (!value.is_string()) return false;
    WINNOW_RETURN_IF_ERROR(heap->ChargeWork(value.AsString().size()));
    const std::string upper = UpperText(value.AsString()), lower = LowerText(value.AsString());
    return upper != lower && value.AsString() == (name == "upper" ? upper : lower);
  }
  const Value* argument = arguments.Get(0, "");
  if (argument == nullptr) {
    if (ComparisonNamed(name).has_value() || name == "divisibleby" || name == "sameas") {
      return Error(absl::StrCat("test '", AbslSv(name), "' needs an argument"));
    }
    return Error(absl::StrCat("no test named '", AbslSv(name), "'"));
  }
  if (const auto op = ComparisonNamed(name)) return Compare(heap, *op, value, *argument);
  if (name == "divisibleby") {
    WINNOW_ASSIGN_OR_RETURN(const int64_t i, Integer(value, name));
    WINNOW_ASSIGN_OR_RETURN(const int64_t n, Integer(*argument, name));
    if (n == 0) return Error("division by zero");
    return n == -1 || i % n == 0;
  }
  if (name == "sameas") {
    if (value.is_list() && argument->is_list()) return &value.AsList() == &argument->AsList();
    if (value.is_dict() && argument->is_dict()) return &value.AsDict() == &argument->AsDict();
    return value.TypeName() == argument->TypeName() ? Equals(heap, value, *argument) : false;
  }
  return Error(absl::StrCat("no test named '", AbslSv(name), "'"));
}

}  // namespace winnow::chat_template
