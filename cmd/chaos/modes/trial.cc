#include "cmd/chaos/modes/trial.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_join.h"
#include "cmd/chaos/modes/report.h"

namespace winnow::chaos {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kGrowthLook{250};
constexpr size_t kExamples = 4;
constexpr size_t kLatest = 4;  // trials that say how fast the machine is
constexpr Slack kAnySlack{.rss_bytes = int64_t{1} << 50, .descriptors = 1 << 30, .threads = 1 << 30};

// The longest time without tokens of each stream that had some, counted from `since` on.
std::vector<double> StallsSince(Clock::time_point since, const std::vector<Answer>& answers) {
  std::vector<double> stalls;
  for (const Answer& answer : answers) {
    double longest = -1;
    for (size_t i = 1; i < answer.arrivals.size(); ++i) {
      if (answer.arrivals[i].at < since) continue;
      const Clock::duration gap = answer.arrivals[i].at - answer.arrivals[i - 1].at;
      longest = std::max(longest, std::chrono::duration<double>(gap).count());
    }
    if (longest >= 0) stalls.push_back(longest);
  }
  return stalls;
}

void JudgeAll(const Session& session, const std::vector<Answer>& answers, Trial& trial) {
  std::vector<double> first_token_s;
  for (size_t i = 0; i < answers.size(); ++i) {
    const Answer& answer = answers[i];
    const Judgement judgement = Judge(session.truths[i], answer);
    ++trial.verdicts[judgement.verdict];
    if (judgement.verdict != Verdict::kSame && trial.examples.size() < kExamples) {
      trial.examples.push_back(absl::StrCat("request ", i, " (", session.requests[i].kind, ", ",
                                            session.requests[i].prompt_tokens, " tokens) ", NameOf(judgement.verdict),
                                            ": ", judgement.why));
    }
    trial.refused += answer.refused;
    trial.resumed += answer.resumed;
    trial.moved += answer.reattached;
    if (!answer.arrivals.empty()) {
      first_token_s.push_back(std::chrono::duration<double>(answer.arrivals.front().at - answer.sent).count());
    }
  }
  trial.first_token_s = DistributionOf(std::move(first_token_s));
}

// What of a trial is against the promises. Identity is not promised once a cache rank was lost and prompts were
// computed again.
void FindTrialFailures(const std::vector<PlannedStrike>& strikes, Trial& trial) {
  bool lost_a_cache_rank = false;
  for (const PlannedStrike& strike : strikes) lost_a_cache_rank |= strike.MayLoseCacheRank();
  const auto fail = [&](std::string what) {
    trial.failures.push_back(absl::StrCat("trial ", trial.number, ": ", what));
  };
  for (const StruckFault& fault : trial.faults) {
    if (!fault.effect.seen) fail(absl::StrCat("no effect of ", fault.name, ": ", fault.effect.evidence));
  }
  for (const auto& [verdict, count] : trial.verdicts) {
    if (verdict == Verdict::kSame || (verdict == Verdict::kToldOther && lost_a_cache_rank)) continue;
    fail(absl::StrCat(count, " ", NameOf(verdict)));
  }
  if (!trial.missing.empty()) fail("not whole again: " + trial.missing);
  if (!trial.back.left.empty()) fail("left behind: " + trial.back.left);
}

// From the first token of all to the last.
Throughput ThroughputAround(const FaultSpan& faults, const std::vector<Answer>& answers) {
  Clock::time_point first = Clock::time_point::max(), last = Clock::time_point::min();
  for (const Answer& answer : answers) {
    if (answer.arrivals.empty()) continue;
    first = std::min(first, answer.arrivals.front().at);
    last = std::max(last, answer.arrivals.back().at);
  }
  if (first > last) return {};
  const Clock::time_point begin = std::clamp(faults.begin, first, last), end = std::clamp(faults.end, first, last);
  return {.before = TokensBetween(answers, first, begin),
          .during = TokensBetween(answers, begin, end),
          .recovering = {},
          .after = TokensBetween(answers, end, last)};
}

// How long a load takes at least, as the machine is now: faults are to strike while it is there.
milliseconds LoadTime(const std::vector<Trial>& trials) {
  double seconds = trials.back().seconds;
  for (size_t i = trials.size() - std::min(kLatest, trials.size()); i < trials.size(); ++i) {
    seconds = std::min(seconds, trials[i].seconds);
  }
  return milliseconds(static_cast<int64_t>(1e3 * seconds));
}

Trial RunTrial(const Session& session, const FaultPlan& plan, int number, const std::vector<PlannedStrike>& strikes) {
  Trial trial{.number = number};
  trial.growth.Look(session.cluster->Scrape());
  StreamOptions stream = session.stream;
  for (const PlannedStrike& strike : strikes) {
    stream.resumable |= strike.kind.may_end() && strike.target && strike.target->role == "router";
  }
  const Clock::time_point begin = Clock::now();
  std::vector<Answer> answers;
  {
    const std::jthread looks([&](const std::stop_token& over) {
      while (SleepFor(kGrowthLook, over)) trial.growth.Look(session.cluster->Scrape(milliseconds(300)));
    });
    const std::jthread load([&] {
      answers = ReadTogether(session.requests, stream, session.spread, session.seed + static_cast<uint64_t>(number));
      trial.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    });
    trial.faults = StrikeAll(strikes, session, plan, begin);
  }
  if (number > 0) Spoil(session.control, answers);
  trial.missing = session.cluster->AwaitWhole(kWholeLimit, session.stop);
  trial.back = AwaitReturn(*session.cluster, session.baseline, session.slack, session.limits, session.stop);
  trial.growth.Look(session.cluster->Scrape());
  const FaultSpan faults = SpanOf(trial.faults, begin);
  trial.under_way = !trial.faults.empty() && std::any_of(answers.begin(), answers.end(), [&](const Answer& answer) {
    return answer.ended > faults.begin;
  });
  trial.stall_s = DistributionOf(StallsSince(faults.begin, answers));
  trial.throughput = ThroughputAround(faults, answers);
  for (const Request& request : session.requests) trial.prompt_tokens_due += request.prompt_tokens;
  JudgeAll(session, answers, trial);
  FindTrialFailures(strikes, trial);
  return trial;
}

}  // namespace

Findings RunTrials(Session& session, const FaultPlan& plan) {
  Findings findings;
  std::vector<Trial> trials;
  const auto keep = [&](Trial trial) {
    session.say(TextOf(trial));
    findings.failures.insert(findings.failures.end(), trial.failures.begin(), trial.failures.end());
    trials.push_back(std::move(trial));
  };
  const Slack slack = std::exchange(session.slack, kAnySlack);  // so many streams at once take what one alone does not
  keep(RunTrial(session, plan, 0, {}));
  session.slack = slack;
  session.baseline = Baseline::Of(*session.cluster);
  for (int number = 1; number <= plan.trials && !session.stop.stop_requested(); ++number) {
    const absl::StatusOr<std::vector<PlannedStrike>> strikes = DrawStrikes(session, plan, number, LoadTime(trials));
    if (!strikes.ok()) {
      findings.failures.push_back(absl::StrCat("trial ", number, ": ", strikes.status().message()));
      break;
    }
    Trial trial = RunTrial(session, plan, number, *strikes);
    // Streams that were cut off here are not lost by the cluster.
    if (session.stop.stop_requested()) break;
    const bool is_over = !trial.missing.empty();
    keep(std::move(trial));
    if (is_over) break;  // what follows would be about a cluster that is not there
  }
  findings.json = JsonOf(trials);
  session.say(SummaryOf(trials));
  return findings;
}

}  // namespace winnow::chaos
