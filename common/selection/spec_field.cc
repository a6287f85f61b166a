#include "common/selection/spec_field.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/cord.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace winnow {
namespace {

constexpr char kFieldPayload[] = "winnow/selection-field";
constexpr char kUnlimited[] = "unlimited";
constexpr char kNoProfile[] = "none";
constexpr char kFromProfile[] = "from profile";

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

template <class T>
bool ParseWhole(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

// The shortest text that reads back as the same number.
std::string ShortestText(float value) {
  char text[64];
  const auto result = std::to_chars(text, text + sizeof text, value);
  return std::string(text, result.ptr);
}

bool InRange(const IntegerValue& field, uint32_t value) {
  if (!field.only.empty()) return std::find(field.only.begin(), field.only.end(), value) != field.only.end();
  return (value >= field.low && value <= field.high) || (field.may_be_unlimited && value == kUnlimitedBudget);
}

// NaN is in no range.
bool InRange(const NumberValue& field, float value) {
  return value >= field.low && value <= field.high;
}

std::string AllowedText(const FieldValue& value) {
  return std::visit(Overloaded{[](const IntegerValue& v) {
                                 if (!v.only.empty()) return absl::StrJoin(v.only, "|");
                                 return absl::StrCat(v.low, "..", v.high, v.may_be_unlimited ? "|unlimited" : "");
                               },
                               [](const NumberValue& v) { return ShortestText(v.low) + ".." + ShortestText(v.high); },
                               [](const BoolValue&) { return std::string("true|false"); },
                               [](const ChoiceValue& v) {
                                 return absl::StrJoin(v.choices, "|", [](std::string* out, const FieldChoice& choice) {
                                   out->append(choice.name);
                                 });
                               },
                               [](const ProfileValue&) { return std::string("a head profile's"); }},
                    value);
}

absl::Status OutOfRange(const SelectionField& field, std::string_view text) {
  const auto* integer = std::get_if<IntegerValue>(&field.value);
  const std::string allowed = AllowedText(field.value);
  std::string expected = "not one of " + absl::StrReplaceAll(allowed, {{"|", ", "}});
  if (integer != nullptr && integer->only.empty()) {
    expected = "not a whole number in " + absl::StrReplaceAll(allowed, {{"|unlimited", " or \"unlimited\""}});
  } else if (std::holds_alternative<NumberValue>(field.value)) {
    expected = "not a number in " + allowed;
  }
  return SpecError(field.name, absl::StrCat("is ", AbslSv(text), ", ", expected));
}

}  // namespace

absl::Status SelectionField::Parse(std::string_view text, SelectionSpec& spec) const {
  const auto refuse = [&] { return OutOfRange(*this, absl::StrCat("\"", AbslSv(text.substr(0, 64)), "\"")); };
  return std::visit(Overloaded{[&](const IntegerValue& v) {
                                 uint32_t number = kUnlimitedBudget;
                                 const bool unlimited = v.may_be_unlimited && text == kUnlimited;
                                 if (!unlimited && !ParseWhole(text, &number)) return refuse();
                                 if (!InRange(v, number)) return refuse();
                                 spec.*v.member = number;
                                 return absl::OkStatus();
                               },
                               [&](const NumberValue& v) {
                                 float number = 0;
                                 if (!ParseWhole(text, &number) || !InRange(v, number)) return refuse();
                                 spec.*v.member = number;
                                 return absl::OkStatus();
                               },
                               [&](const BoolValue& v) {
                                 if (text != "true" && text != "false") return refuse();
                                 spec.*v.member = text == "true";
                                 return absl::OkStatus();
                               },
                               [&](const ChoiceValue& v) {
                                 for (size_t i = 0; i < v.choices.size(); ++i) {
                                   // '_' and '-' mean the same to users, as in option names.
                                   if (absl::StrReplaceAll(AbslSv(text), {{"_", "-"}}) != AbslSv(v.choices[i].name))
                                     continue;
                                   v.set(spec, i);
                                   return absl::OkStatus();
                                 }
                                 return refuse();
                               },
                               [&](const ProfileValue&) {
                                 if (text == Print(spec)) return absl::OkStatus();
                                 return SpecError(name, "cannot be written: budgets by head come from a head profile");
                               }},
                    value);
}

std::string SelectionField::Print(const SelectionSpec& spec) const {
  return std::visit(
      Overloaded{
          [&](const IntegerValue& v) {
            const uint32_t number = spec.*v.member;
            return v.may_be_unlimited && number == kUnlimitedBudget ? kUnlimited : absl::StrCat(number);
          },
          [&](const NumberValue& v) { return ShortestText(spec.*v.member); },
          [&](const BoolValue& v) { return std::string(spec.*v.member ? "true" : "false"); },
          [&](const ChoiceValue& v) { return std::string(v.choices.at(v.get(spec)).name); },
          [&](const ProfileValue&) { return std::string(spec.head_budgets.empty() ? kNoProfile : kFromProfile); }},
      value);
}

absl::Status SelectionField::Check(const SelectionSpec& spec) const {
  const bool good = std::visit(
      Overloaded{[&](const IntegerValue& v) { return InRange(v, spec.*v.member); },
                 [&](const NumberValue& v) { return InRange(v, spec.*v.member); }, [](const auto&) { return true; }},
      value);
  return good ? absl::OkStatus() : OutOfRange(*this, Print(spec));
}

std::string SelectionField::Allowed() const {
  return AllowedText(value);
}

bool SelectionField::Same(const SelectionSpec& a, const SelectionSpec& b) const {
  if (std::holds_alternative<ProfileValue>(value)) return a.head_budgets == b.head_budgets;
  return Print(a) == Print(b);
}

absl::Status SpecError(std::string_view field, std::string_view problem) {
  const std::string subject = field.empty() ? "selection:" : absl::StrCat("selection.", AbslSv(field));
  return BlameField(absl::InvalidArgumentError(absl::StrCat(subject, " ", AbslSv(problem))), field);
}

absl::Status BlameField(absl::Status status, std::string_view field) {
  status.SetPayload(kFieldPayload, absl::Cord(AbslSv(field)));
  return status;
}

std::string SpecErrorField(const absl::Status& status) {
  const auto payload = status.GetPayload(kFieldPayload);
  return payload ? std::string(*payload) : std::string();
}

}  // namespace winnow
