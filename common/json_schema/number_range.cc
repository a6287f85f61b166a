#include "common/json_schema/number_range.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace winnow {
namespace {

using ExprId = Grammar::ExprId;

class RangeWriter {
 public:
  explicit RangeWriter(Grammar& grammar) : grammar_(grammar) {}

  // Whole numbers from `low` to `high`, both at least 0.
  ExprId Naturals(int64_t low, std::optional<int64_t> high) {
    if (high.has_value() && *high < low) return Nothing();
    std::vector<ExprId> parts;
    std::string from = std::to_string(low);
    while (true) {
      if (high.has_value() && std::to_string(*high).size() == from.size()) {
        parts.push_back(Between(from, std::to_string(*high)));
        break;
      }
      parts.push_back(AtLeast(from));
      if (!high.has_value()) {
        const auto digits = static_cast<uint32_t>(from.size());
        parts.push_back(grammar_.Sequence({Digit('1', '9'), Digits(digits, std::nullopt)}));
        break;
      }
      from = "1" + std::string(from.size(), '0');
    }
    return grammar_.Choice(std::move(parts));
  }

  // Numbers with or without decimals from `low` to `high`, both at least 0.
  ExprId Decimals(int64_t low, bool low_excluded, std::optional<int64_t> high, bool high_excluded) {
    if (high.has_value() && *high < low) return Nothing();
    std::vector<ExprId> parts;
    const ExprId any_fraction = grammar_.Optional(grammar_.Sequence({grammar_.Bytes("."), Digits(1, std::nullopt)}));
    std::optional<int64_t> last_whole = high;
    if (last_whole.has_value()) --*last_whole;
    parts.push_back(grammar_.Sequence({Naturals(low + (low_excluded ? 1 : 0), last_whole), any_fraction}));
    if (low_excluded && high != low) {
      parts.push_back(grammar_.Sequence({grammar_.Bytes(std::to_string(low) + "."),
                                         grammar_.Repeat(grammar_.Bytes("0"), 0, std::nullopt), Digit('1', '9'),
                                         Digits(0, std::nullopt)}));
    }
    if (high.has_value() && !high_excluded && !(low_excluded && high == low)) {
      const ExprId zeros = grammar_.Repeat(grammar_.Bytes("0"), 1, std::nullopt);
      parts.push_back(grammar_.Sequence(
          {grammar_.Bytes(std::to_string(*high)), grammar_.Optional(grammar_.Sequence({grammar_.Bytes("."), zeros}))}));
    }
    return grammar_.Choice(std::move(parts));
  }

  ExprId Nothing() { return grammar_.Choice({}); }

 private:
  ExprId Digit(char first, char last) {
    if (first > last) return Nothing();
    return grammar_.Character({{static_cast<char32_t>(first), static_cast<char32_t>(last)}});
  }
  ExprId Digits(uint32_t min, std::optional<uint32_t> max) { return grammar_.Repeat(Digit('0', '9'), min, max); }
  ExprId AnyDigits(size_t count) { return Digits(static_cast<uint32_t>(count), static_cast<uint32_t>(count)); }
  ExprId One(char digit) { return grammar_.Bytes(std::string(1, digit)); }

  // Numbers of as many digits as the bounds, which have equally many.
  ExprId AtLeast(const std::string& low) {
    if (low.empty()) return grammar_.Empty();
    const std::string rest = low.substr(1);
    return grammar_.Choice({grammar_.Sequence({One(low[0]), AtLeast(rest)}),
                            grammar_.Sequence({Digit(static_cast<char>(low[0] + 1), '9'), AnyDigits(rest.size())})});
  }
  ExprId AtMost(const std::string& high) {
    if (high.empty()) return grammar_.Empty();
    const std::string rest = high.substr(1);
    return grammar_.Choice({grammar_.Sequence({One(high[0]), AtMost(rest)}),
                            grammar_.Sequence({Digit('0', static_cast<char>(high[0] - 1)), AnyDigits(rest.size())})});
  }
  ExprId Between(const std::string& low, const std::string& high) {
    if (low.empty()) return grammar_.Empty();
    const std::string low_rest = low.substr(1), high_rest = high.substr(1);
    if (low[0] == high[0]) return grammar_.Sequence({One(low[0]), Between(low_rest, high_rest)});
    return grammar_.Choice({grammar_.Sequence({One(low[0]), AtLeast(low_rest)}),
                            grammar_.Sequence({Digit(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)),
                                               AnyDigits(low_rest.size())}),
                            grammar_.Sequence({One(high[0]), AtMost(high_rest)})});
  }

  Grammar& grammar_;
};

std::optional<int64_t> Negated(std::optional<int64_t> value) {
  if (value.has_value()) value = -*value;
  return value;
}

}  // namespace

ExprId AddIntegerRange(const NumberBounds& bounds, Grammar& grammar) {
  std::optional<int64_t> low = bounds.low, high = bounds.high;
  if (low.has_value() && bounds.low_excluded) ++*low;
  if (high.has_value() && bounds.high_excluded) --*high;
  RangeWriter writer(grammar);
  std::vector<ExprId> parts;
  if (!high.has_value() || *high >= 0) parts.push_back(writer.Naturals(std::max<int64_t>(low.value_or(0), 0), high));
  if (!low.has_value() || *low < 0) {
    const int64_t least = high.has_value() ? std::max<int64_t>(-*high, 0) : 0;
    parts.push_back(grammar.Sequence({grammar.Bytes("-"), writer.Naturals(least, Negated(low))}));
  }
  return grammar.Choice(std::move(parts));
}

ExprId AddNumberRange(const NumberBounds& bounds, Grammar& grammar) {
  RangeWriter writer(grammar);
  std::vector<ExprId> parts;
  if (!bounds.high.has_value() || *bounds.high >= 0) {
    const bool from_low = bounds.low.has_value() && *bounds.low >= 0;
    parts.push_back(writer.Decimals(from_low ? *bounds.low : 0, from_low && bounds.low_excluded, bounds.high,
                                    bounds.high_excluded));
  }
  if (!bounds.low.has_value() || *bounds.low < 0) {
    const bool from_high = bounds.high.has_value() && *bounds.high <= 0;
    parts.push_back(grammar.Sequence(
        {grammar.Bytes("-"), writer.Decimals(from_high ? -*bounds.high : 0, from_high && bounds.high_excluded,
                                             Negated(bounds.low), bounds.low_excluded)}));
  }
  return grammar.Choice(std::move(parts));
}

}  // namespace winnow
