#include <atomic>
#include <mutex>
#include <thread>

#include "absl/strings/str_format.h"
#include "cmd/chaos/modes/closed_loop.h"
#include "cmd/chaos/modes/modes.h"
#include "cmd/chaos/modes/report.h"

namespace winnow::chaos {
namespace {

using std::chrono::milliseconds;

// Clients have their first answers by then, and the cluster what it learns from load.
constexpr milliseconds kWarmUp{3000};
constexpr milliseconds kRecovery{5000};
constexpr milliseconds kLateness{1000};  // that an end may have behind a request's deadline
constexpr double kLeastRecovered = 0.95;

// What became of the requests of a round.
struct Ends {
  size_t same = 0, told = 0, wrong = 0, lost = 0, refused = 0, by_deadline = 0, late = 0;
  Clock::duration latest{};  // behind the deadline
  std::string example;       // of one that breaks a promise
};

struct Round {
  std::vector<StruckFault> faults;
  Throughput throughput;
  Ends ends;
};

// `may_differ`: a cache rank may have been taken for lost, so that answers may tell that they are others.
Ends Count(const Session& session, const HealPlan& plan, const std::vector<std::pair<size_t, Answer>>& answers,
           bool may_differ) {
  Ends ends;
  const auto bad = [&](size_t& count, size_t request, const std::string& why) {
    if (count++ == 0) ends.example = absl::StrCat("request ", request, ": ", why);
  };
  for (const auto& [request, answer] : answers) {
    const Clock::duration behind = answer.ended - answer.sent - plan.deadline;
    ends.latest = std::max(ends.latest, behind);
    if (behind > kLateness) bad(ends.late, request, absl::StrCat(TimeText(behind), " behind its deadline"));
    if (!answer.done && answer.refused > 0) {
      ++ends.refused;
    } else if (!answer.done && behind > Clock::duration{}) {
      ++ends.by_deadline;
    } else {
      const Judgement judgement = Judge(session.truths[request], answer);
      if (judgement.verdict == Verdict::kSame) {
        ++ends.same;
      } else if (judgement.verdict == Verdict::kToldOther && may_differ) {
        ++ends.told;
      } else {
        bad(judgement.verdict == Verdict::kLost ? ends.lost : ends.wrong, request,
            absl::StrCat(NameOf(judgement.verdict), ": ", judgement.why));
      }
    }
  }
  return ends;
}

Round RunRound(const Session& session, const HealPlan& plan, std::vector<PlannedStrike> strikes) {
  Round round;
  bool may_differ = false;
  for (PlannedStrike& strike : strikes) {
    strike.at = kWarmUp + plan.window;
    may_differ |= strike.MayLoseCacheRank();
  }
  std::atomic<bool> over{false};
  std::vector<std::pair<size_t, Answer>> answers;
  const Clock::time_point begin = Clock::now();
  FaultSpan span;
  {
    const std::jthread load([&] {
      RunClosedLoop(
          session, plan.clients, [&] { return !over; },
          [&](size_t request, const Answer& answer) { answers.emplace_back(request, answer); });
    });
    round.faults = StrikeAll(strikes, session, plan.faults, begin);
    if (strikes.empty()) SleepFor(kWarmUp + plan.window + plan.faults.lasts, session.stop);
    span = SpanOf(round.faults, begin + kWarmUp + plan.window);
    if (strikes.empty()) span.end = Clock::now();
    SleepFor(kRecovery + plan.window, session.stop);
    over = true;
  }
  std::vector<Answer> all;
  for (const auto& [request, answer] : answers) all.push_back(answer);
  round.throughput = {.before = TokensBetween(all, span.begin - plan.window, span.begin),
                      .during = TokensBetween(all, span.begin, span.end),
                      .recovering = TokensBetween(all, span.end, span.end + kRecovery),
                      .after = TokensBetween(all, span.end + kRecovery, span.end + kRecovery + plan.window)};
  round.ends = Count(session, plan, answers, may_differ);
  return round;
}

double Recovered(const Throughput& throughput) {
  return throughput.before.per_s() > 0 ? throughput.after.per_s() / throughput.before.per_s() : 0;
}

void Say(const Session& session, const Round& round, int number) {
  const Ends& ends = round.ends;
  std::string text = number == 0 ? "undisturbed\n" : absl::StrCat("trial ", number, "\n");
  for (const StruckFault& fault : round.faults) text += TextOf(fault);
  absl::StrAppendFormat(&text, "  %s: %.0f %% of before\n", TextOf(round.throughput),
                        100 * Recovered(round.throughput));
  absl::StrAppendFormat(
      &text,
      "  %d the same, %d told to be others, %d other or broken, %d lost, %d refused, %d ended by their "
      "deadline, %d more than a second behind it%s\n",
      ends.same, ends.told, ends.wrong, ends.lost, ends.refused, ends.by_deadline, ends.late,
      ends.latest > Clock::duration{} ? absl::StrCat(" (latest: ", TimeText(ends.latest), ")") : "");
  if (!ends.example.empty()) absl::StrAppend(&text, "    ", ends.example, "\n");
  session.say(text);
}

void FindRoundFailures(const Round& round, int number, std::vector<std::string>& failures) {
  const auto fail = [&](const std::string& what) { failures.push_back(absl::StrCat("trial ", number, ": ", what)); };
  for (const StruckFault& fault : round.faults) {
    if (!fault.effect.seen) fail(absl::StrCat("no effect of ", fault.name, ": ", fault.effect.evidence));
  }
  const Ends& ends = round.ends;
  if (ends.wrong > 0) fail(absl::StrCat(ends.wrong, " with other tokens or broken"));
  if (ends.lost > 0) fail(absl::StrCat(ends.lost, " lost before their deadline"));
  if (ends.late > 0) fail(absl::StrCat(ends.late, " not ended a second behind their deadline"));
  if (ends.same + ends.told == 0) fail("no answer was compared with anything");
}

}  // namespace

Findings RunHeal(const Session& given, const HealPlan& plan) {
  Session session = given;
  session.stream.deadline = plan.deadline;
  // Longer than any end may take: what hangs is to be seen.
  session.stream.patience = plan.deadline + 10 * kLateness;
  session.stream.again = false;
  Findings findings;
  findings.json = nlohmann::ordered_json::array();
  double before = 0, after = 0;
  for (int number = 0; number <= plan.faults.trials && !session.stop.stop_requested(); ++number) {
    std::vector<PlannedStrike> strikes;
    if (number > 0) {
      absl::StatusOr<std::vector<PlannedStrike>> drawn = DrawStrikes(session, plan.faults, number, milliseconds(1));
      if (!drawn.ok()) {
        findings.failures.push_back(absl::StrCat("trial ", number, ": ", drawn.status().message()));
        break;
      }
      strikes = *std::move(drawn);
    }
    const Round round = RunRound(session, plan, std::move(strikes));
    if (session.stop.stop_requested()) break;
    Say(session, round, number);
    FindRoundFailures(round, number, findings.failures);
    findings.json.push_back({{"trial", number},
                             {"throughput", JsonOf(round.throughput)},
                             {"same", round.ends.same},
                             {"told_not_identical", round.ends.told},
                             {"other_tokens", round.ends.wrong},
                             {"lost", round.ends.lost},
                             {"refused", round.ends.refused},
                             {"ended_by_deadline", round.ends.by_deadline},
                             {"late", round.ends.late},
                             {"latest_behind_deadline_s", std::chrono::duration<double>(round.ends.latest).count()}});
    if (number > 0) {
      before += round.throughput.before.per_s();
      after += round.throughput.after.per_s();
    }
  }
  const double recovered = before > 0 ? after / before : 0;
  session.say(absl::StrFormat("all trials: %.0f %% of the tokens a second of before, from %s behind the faults on\n",
                              100 * recovered, TimeText(kRecovery)));
  // Single trials vary with the machine; the sum of all is judged.
  if (recovered < kLeastRecovered) {
    findings.failures.push_back(absl::StrFormat("throughput came back to %.0f %% only", 100 * recovered));
  }
  if (const std::string missing = session.cluster->AwaitWhole(kWholeLimit, session.stop); !missing.empty()) {
    findings.failures.push_back("not whole again: " + missing);
  }
  CheckReturn(session, findings.failures);
  return findings;
}

}  // namespace winnow::chaos
