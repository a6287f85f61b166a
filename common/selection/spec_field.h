#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// One value of an enumeration of SelectionSpec as users write it.
struct FieldChoice {
  std::string_view name;
  std::string_view meaning;
  std::string_view cost;
  std::string_view source = {};  // paper or system; empty for ours
};

// How a field is read, printed and checked: one of these five.
struct IntegerValue {
  uint32_t SelectionSpec::*member;
  uint32_t low = 0;
  uint32_t high = 0;
  std::vector<uint32_t> only = {};  // the values there are; empty: all of [low, high]
  bool may_be_unlimited = false;    // kUnlimitedBudget is written "unlimited"
};
struct NumberValue {
  float SelectionSpec::*member;
  float low = 0;
  float high = 0;
};
struct BoolValue {
  bool SelectionSpec::*member;
};
struct ChoiceValue {
  size_t (*get)(const SelectionSpec&);
  void (*set)(SelectionSpec&, size_t index);
  std::vector<FieldChoice> choices;  // in the order of the enumeration
};
// head_budgets: too long to write; says whether there is a profile.
struct ProfileValue {};
using FieldValue = std::variant<IntegerValue, NumberValue, BoolValue, ChoiceValue, ProfileValue>;

// A field of SelectionSpec: all that text forms, JSON forms, checks, help and requests need to know of it.
struct SelectionField {
  std::string_view name;
  FieldValue value;
  std::string_view meaning;      // one line
  std::string_view cost = {};    // what a larger or another value costs; empty when nothing
  std::string_view source = {};  // paper or system that has it; empty for ours
  bool per_request = false;      // a request may change it; all others are fixed when the server starts

  // Sets the field from its text. INVALID_ARGUMENT, with SpecErrorField, says what is allowed.
  absl::Status Parse(std::string_view text, SelectionSpec& spec) const;
  // The shortest text that Parse reads back as the same value.
  std::string Print(const SelectionSpec& spec) const;
  // INVALID_ARGUMENT when the value is out of its range.
  absl::Status Check(const SelectionSpec& spec) const;
  // Values that are allowed, in short: "2..32", "16|32|64", "true|false", "none|int8".
  std::string Allowed() const;
  bool Same(const SelectionSpec& a, const SelectionSpec& b) const;
};

// An INVALID_ARGUMENT that blames one field ("preset" stands for the preset's name), and that field ("" when none).
absl::Status SpecError(std::string_view field, std::string_view problem);
absl::Status BlameField(absl::Status status, std::string_view field);
std::string SpecErrorField(const absl::Status& status);

}  // namespace winnow
