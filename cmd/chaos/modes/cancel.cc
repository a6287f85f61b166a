#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/str_format.h"
#include "cmd/chaos/modes/closed_loop.h"
#include "cmd/chaos/modes/modes.h"

namespace winnow::chaos {
namespace {

using std::chrono::milliseconds;

// When a client goes away: after a time, or once it has so many events with tokens.
struct Leaving {
  milliseconds after{0};  // 0: by events
  size_t events = 0;
};

Leaving DrawLeaving(const Session& session, size_t request, std::mt19937_64& random) {
  const Answer& truth = session.truths[request];
  if (random() % 2 == 0) return {.events = 1 + random() % (truth.arrivals.size() + 1)};
  const auto alone = std::chrono::duration_cast<milliseconds>(truth.ended - truth.sent).count();
  return {.after = milliseconds(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(2 * alone + 1)))};
}

Answer ReadAndLeave(const Session& session, size_t number, const Leaving& leaving) {
  StreamOptions stream = session.stream;
  stream.resumable = false;  // a resumable stream outlives its client
  if (leaving.events > 0) {
    stream.leave = [&leaving](const Answer& answer) { return answer.arrivals.size() >= leaving.events; };
  }
  std::stop_source left;
  const std::stop_callback interrupted(session.stop, [&left] { left.request_stop(); });
  stream.stop = left.get_token();
  const std::jthread timer([&](const std::stop_token& over) {
    if (leaving.after.count() > 0 && SleepFor(leaving.after, over)) left.request_stop();
  });
  return ReadAnswer(session.requests[number % session.requests.size()], stream, number);
}

}  // namespace

Findings RunCancels(const Session& session, const CancelPlan& plan) {
  Findings findings;
  std::atomic<size_t> next{0};
  std::mutex mutex;
  size_t before_events = 0, amid = 0, complete = 0, refused = 0;
  Tally tally;
  const Clock::time_point begin = Clock::now();
  {
    std::vector<std::jthread> threads;
    for (uint32_t i = 0; i < plan.clients; ++i) {
      threads.emplace_back([&] {
        for (size_t number; (number = next++) < plan.cancels && !session.stop.stop_requested();) {
          const size_t request = number % session.requests.size();
          std::mt19937_64 random(session.seed * 1'000'003 + number);
          const Answer answer = ReadAndLeave(session, number, DrawLeaving(session, request, random));
          if (session.stop.stop_requested()) return;
          const std::scoped_lock lock(mutex);
          refused += static_cast<size_t>(answer.refused);
          ++(answer.done ? complete : answer.arrivals.empty() ? before_events : amid);
          if (answer.done) tally.Add(session, request, answer);
        }
      });
    }
  }
  const size_t cancelled = before_events + amid;
  session.say(
      absl::StrFormat("%d streams cancelled in %s: %d before their first token, %d behind it; %d were complete "
                      "before, refused and sent again %d\n",
                      cancelled, TimeText(Clock::now() - begin), before_events, amid, complete, refused));
  if (session.control == Control::kNoFault || cancelled == 0) findings.failures.push_back("no stream was cancelled");
  CheckReturn(session, findings.failures);
  // What was left behind in secret shows in what comes next.
  const std::vector<Answer> answers = ReadTogether(session.requests, session.stream, session.spread, session.seed);
  for (size_t i = 0; i < answers.size(); ++i) tally.Add(session, i, answers[i]);
  session.say("  complete ones and all requests once more: " + tally.Text() + "\n");
  tally.AddFailures(findings.failures);
  findings.json = {{"cancelled_before_tokens", before_events},
                   {"cancelled_behind_tokens", amid},
                   {"complete", complete},
                   {"same", tally.same},
                   {"other_tokens", tally.wrong},
                   {"lost", tally.lost}};
  return findings;
}

}  // namespace winnow::chaos
