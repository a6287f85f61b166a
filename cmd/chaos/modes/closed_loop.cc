#include "cmd/chaos/modes/closed_loop.h"

#include <atomic>
#include <mutex>
#include <thread>

#include "absl/strings/str_join.h"
#include "cmd/chaos/modes/report.h"

namespace winnow::chaos {
namespace {

constexpr std::chrono::milliseconds kPauseWhenRefused{200};

}  // namespace

void RunClosedLoop(const Session& session, uint32_t clients, const std::function<bool()>& goes_on,
                   const std::function<void(size_t request, const Answer& answer)>& on_answer) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::vector<std::jthread> threads;
  for (uint32_t i = 0; i < clients; ++i) {
    threads.emplace_back([&] {
      while (goes_on() && !session.stop.stop_requested()) {
        const size_t number = next++;
        const size_t request = number % session.requests.size();
        const Answer answer = ReadAnswer(session.requests[request], session.stream, number);
        if (session.stop.stop_requested()) return;
        {
          const std::scoped_lock lock(mutex);
          on_answer(request, answer);
        }
        if (answer.refused > 0 && !answer.done) SleepFor(kPauseWhenRefused, session.stop);
      }
    });
  }
}

void Tally::Add(const Session& session, size_t request, const Answer& answer) {
  std::vector<Answer> one = {answer};
  if (same + wrong + lost == 0) Spoil(session.control, one);
  const Judgement judgement = Judge(session.truths[request], one.front());
  ++(judgement.verdict == Verdict::kSame ? same : judgement.verdict == Verdict::kLost ? lost : wrong);
  if (judgement.verdict != Verdict::kSame && example.empty()) {
    example = absl::StrCat("request ", request, " (", session.requests[request].kind, ") ", NameOf(judgement.verdict),
                           ": ", judgement.why);
  }
}

std::string Tally::Text() const {
  return absl::StrCat(same, " the same, ", wrong, " with other tokens or broken, ", lost, " lost",
                      example.empty() ? "" : "\n    " + example);
}

void Tally::AddFailures(std::vector<std::string>& failures) const {
  if (wrong > 0) failures.push_back(absl::StrCat(wrong, " with other tokens or broken"));
  if (lost > 0) failures.push_back(absl::StrCat(lost, " lost"));
  if (same + wrong + lost == 0) failures.push_back("no answer was compared with anything");
}

std::string EndedSince(const Members& before, const Members& now) {
  std::vector<std::string> ended;
  for (const auto& [rank, member] : before) {
    const auto it = now.find(rank);
    if (it == now.end()) {
      ended.push_back(member.Name() + " does not answer");
    } else if (it->second.process.pid() != member.process.pid()) {
      ended.push_back(member.Name() + " was started anew");
    }
  }
  return absl::StrJoin(ended, ", ");
}

void CheckReturn(const Session& session, std::vector<std::string>& failures) {
  const Return back = AwaitReturn(*session.cluster, session.baseline, session.slack, session.limits, session.stop);
  if (!back.left.empty()) {
    failures.push_back("left behind: " + back.left);
    session.say("  left behind: " + back.left + "\n");
    return;
  }
  session.say(absl::StrCat("  everything back after ", TimeText(back.held), "; memory, descriptors and threads after ",
                           TimeText(back.figures), "\n"));
}

}  // namespace winnow::chaos
