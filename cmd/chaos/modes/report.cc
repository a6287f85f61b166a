#include "cmd/chaos/modes/report.h"

#include "absl/strings/str_format.h"

namespace winnow::chaos {
namespace {

using Json = nlohmann::ordered_json;

int CountOf(const Trial& trial, Verdict verdict) {
  const auto count = trial.verdicts.find(verdict);
  return count == trial.verdicts.end() ? 0 : count->second;
}

int Streams(const Trial& trial) {
  int streams = 0;
  for (const auto& [verdict, count] : trial.verdicts) streams += count;
  return streams;
}

// Prompt tokens beyond those of an undisturbed cluster. What a killed process counted last is not seen.
double Recomputed(const Trial& trial) {
  return std::max(0.0, trial.growth.prompt_tokens() - trial.prompt_tokens_due);
}

}  // namespace

const char* NameOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kSame:
      return "the same";
    case Verdict::kToldOther:
      return "other tokens, told by not_identical";
    case Verdict::kOther:
      return "other tokens";
    case Verdict::kBrokenRule:
      return "broken streams";
    case Verdict::kLost:
      return "lost";
  }
  return "?";
}

std::string TextOf(const StruckFault& fault) {
  return absl::StrFormat("  %.2f s: %s of %s\n    %s: %s\n", fault.at_s, fault.name, fault.target,
                         fault.effect.seen ? "effect" : "NO EFFECT", fault.effect.evidence);
}

std::string TextOf(const Trial& trial) {
  std::string text =
      trial.number == 0 ? "undisturbed, all streams at once\n" : absl::StrCat("trial ", trial.number, "\n");
  for (const StruckFault& fault : trial.faults) text += TextOf(fault);
  absl::StrAppendFormat(&text,
                        "  %d streams in %.1f s: %d the same, %d with other tokens (%d told), %d broken, %d lost; "
                        "refused and sent again %d, resumed %d\n",
                        Streams(trial), trial.seconds, CountOf(trial, Verdict::kSame),
                        CountOf(trial, Verdict::kOther) + CountOf(trial, Verdict::kToldOther),
                        CountOf(trial, Verdict::kToldOther), CountOf(trial, Verdict::kBrokenRule),
                        CountOf(trial, Verdict::kLost), trial.refused, trial.resumed);
  for (const std::string& example : trial.examples) absl::StrAppend(&text, "    ", example, "\n");
  absl::StrAppendFormat(&text,
                        "  longest gap p50 %.2f s, p99 %.2f s of %d streams under way; first token p50 %.2f s, "
                        "p99 %.2f s\n",
                        trial.stall_s.p50, trial.stall_s.p99, trial.stall_s.count, trial.first_token_s.p50,
                        trial.first_token_s.p99);
  absl::StrAppend(&text, "  ", TextOf(trial.throughput), "\n");
  absl::StrAppendFormat(&text,
                        "  failovers %.0f by attaching, %.0f by computing again; %.0f prompt tokens computed "
                        "again, %.0f answer tokens repeated; %.0f stale frames refused\n",
                        trial.growth.failovers_reattached(), trial.growth.failovers_recomputed(), Recomputed(trial),
                        trial.growth.replayed_tokens(), trial.growth.stale_refused());
  const std::string lost = trial.growth.lost_attempts();
  if (!lost.empty()) absl::StrAppend(&text, "  attempts lost by: ", lost, "\n");
  if (trial.back.left.empty()) {
    absl::StrAppend(&text, "  everything back after ", TimeText(trial.back.held),
                    "; memory, descriptors and threads after ", TimeText(trial.back.figures), "\n");
  }
  for (const std::string& failure : trial.failures) absl::StrAppend(&text, "  FAILED ", failure, "\n");
  return text;
}

std::string SummaryOf(const std::vector<Trial>& trials) {
  std::map<std::string, int> faults;
  int under_way = 0, streams = 0, same = 0, other = 0, told = 0, broken = 0, lost = 0;
  for (const Trial& trial : trials) {
    for (const StruckFault& fault : trial.faults) ++faults[fault.name];
    if (trial.number == 0) continue;
    under_way += trial.under_way;
    streams += Streams(trial);
    same += CountOf(trial, Verdict::kSame);
    other += CountOf(trial, Verdict::kOther);
    told += CountOf(trial, Verdict::kToldOther);
    broken += CountOf(trial, Verdict::kBrokenRule);
    lost += CountOf(trial, Verdict::kLost);
  }
  std::string text = "all trials:";
  for (const auto& [name, count] : faults) absl::StrAppend(&text, " ", name, " ", count);
  absl::StrAppendFormat(
      &text, "; %d under load\n  %d streams: %d the same, %d with other tokens, %d told so, %d broken, %d lost\n",
      under_way, streams, same, other, told, broken, lost);
  return text;
}

Json JsonOf(const Throughput& throughput) {
  const auto window = [](const TokenWindow& of) { return Json{{"tokens_per_s", of.per_s()}, {"seconds", of.seconds}}; };
  return {{"before", window(throughput.before)},
          {"during", window(throughput.during)},
          {"recovering", window(throughput.recovering)},
          {"after", window(throughput.after)}};
}

Json JsonOf(const std::vector<Trial>& trials) {
  Json list = Json::array();
  for (const Trial& trial : trials) {
    Json faults = Json::array();
    for (const StruckFault& fault : trial.faults) {
      faults.push_back({{"fault", fault.name},
                        {"target", fault.target},
                        {"at_s", fault.at_s},
                        {"effect", fault.effect.seen},
                        {"evidence", fault.effect.evidence}});
    }
    list.push_back({{"trial", trial.number},
                    {"faults", std::move(faults)},
                    {"streams", Streams(trial)},
                    {"same", CountOf(trial, Verdict::kSame)},
                    {"other_tokens", CountOf(trial, Verdict::kOther)},
                    {"told_not_identical", CountOf(trial, Verdict::kToldOther)},
                    {"broken", CountOf(trial, Verdict::kBrokenRule)},
                    {"lost", CountOf(trial, Verdict::kLost)},
                    {"examples", trial.examples},
                    {"refused", trial.refused},
                    {"resumed", trial.resumed},
                    {"seconds", trial.seconds},
                    {"under_load", trial.under_way},
                    {"stall_p50_s", trial.stall_s.p50},
                    {"stall_p99_s", trial.stall_s.p99},
                    {"first_token_p50_s", trial.first_token_s.p50},
                    {"first_token_p99_s", trial.first_token_s.p99},
                    {"throughput", JsonOf(trial.throughput)},
                    {"failovers_reattached", trial.growth.failovers_reattached()},
                    {"failovers_recomputed", trial.growth.failovers_recomputed()},
                    {"lost_attempts", trial.growth.lost_attempts()},
                    {"recomputed_prompt_tokens", Recomputed(trial)},
                    {"repeated_answer_tokens", trial.growth.replayed_tokens()},
                    {"stale_frames_refused", trial.growth.stale_refused()},
                    {"back_after_s", std::chrono::duration<double>(trial.back.held).count()},
                    {"left_behind", trial.back.left},
                    {"failures", trial.failures}});
  }
  return list;
}

}  // namespace winnow::chaos
