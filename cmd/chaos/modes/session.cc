#include "cmd/chaos/modes/session.h"

#include "cmd/chaos/load/oracle.h"

namespace winnow::chaos {

absl::Status AskAlone(Session& session, const std::function<void(size_t)>& progress) {
  session.truths.clear();
  for (const Request& request : session.requests) {
    if (session.stop.stop_requested()) return absl::CancelledError("interrupted");
    Answer answer = ReadAnswer(request, session.stream, session.truths.size());
    const Judgement own = Judge(answer, answer);
    if (own.verdict != Verdict::kSame || answer.reattached > 0 || answer.not_identical) {
      return absl::UnavailableError(
          absl::StrCat("request ", session.truths.size(), " (", request.kind, ", ", request.prompt_tokens,
                       " tokens) is not answered alone: ", own.why.empty() ? "it was moved between ranks" : own.why));
    }
    session.truths.push_back(std::move(answer));
    progress(session.truths.size());
  }
  return absl::OkStatus();
}

void Spoil(Control control, std::vector<Answer>& answers) {
  if (answers.empty()) return;
  Answer& answer = answers.front();
  if (control == Control::kWrongToken && !answer.choices.empty()) {
    std::vector<uint32_t>& ids = answer.choices.begin()->second.ids;
    if (!ids.empty()) ++ids.back();
  }
  if (control == Control::kLostRequest) {
    answer.done = false;
    answer.error = "dropped by the control";
  }
}

}  // namespace winnow::chaos
