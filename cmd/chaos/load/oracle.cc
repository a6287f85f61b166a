#include "cmd/chaos/load/oracle.h"

#include <algorithm>

namespace winnow::chaos {
namespace {

// Empty when they are equal.
std::string Difference(const Choice& truth, const Choice& choice) {
  const auto [right, got] = std::mismatch(truth.ids.begin(), truth.ids.end(), choice.ids.begin(), choice.ids.end());
  const auto at = right - truth.ids.begin();
  if (right != truth.ids.end() && got != choice.ids.end()) {
    return absl::StrCat("token ", at, " of ", truth.ids.size(), " is ", *got, " in place of ", *right);
  }
  if (truth.ids.size() != choice.ids.size()) {
    return absl::StrCat(choice.ids.size(), " tokens in place of ", truth.ids.size());
  }
  if (truth.text != choice.text) return "the text differs, the tokens do not";
  if (truth.finish_reason != choice.finish_reason) {
    return absl::StrCat("it ended by ", choice.finish_reason, " in place of ", truth.finish_reason);
  }
  return "";
}

}  // namespace

Judgement Judge(const Answer& truth, const Answer& answer) {
  if (!answer.done) return {Verdict::kLost, answer.error.empty() ? "no end of the stream" : answer.error};
  if (!answer.breach.empty()) return {Verdict::kBrokenRule, answer.breach};
  for (const auto& [index, right] : truth.choices) {
    const auto choice = answer.choices.find(index);
    const std::string difference = choice == answer.choices.end() ? "missing" : Difference(right, choice->second);
    if (difference.empty()) continue;
    return {answer.not_identical ? Verdict::kToldOther : Verdict::kOther,
            absl::StrCat("sample ", index, ": ", difference, ", moved ", answer.reattached, " times")};
  }
  return {};
}

}  // namespace winnow::chaos
