#include "cmd/client/generation_client.h"

#include <atomic>
#include <thread>

#include "absl/strings/str_format.h"
#include "common/base/stop_signals.h"
#include "common/rpc/channel.h"

namespace winnow {
namespace {

// Cancels a call when a stop signal comes, as long as this object lives.
class CancelOnSignal {
 public:
  explicit CancelOnSignal(AnswerStream& stream)
      : thread_([this, &stream] {
          while (!done_) {
            if (StopSignalWithin(std::chrono::milliseconds(50)) != 0) stream.Cancel();
          }
        }) {}
  ~CancelOnSignal() {
    done_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace

GenerationClient::GenerationClient(const std::string& address, std::string api_key, const Credentials& credentials)
    : client_(NewChannel(address, credentials), {.api_key = std::move(api_key)}, address) {}

absl::StatusOr<GenerationResult> GenerationClient::Generate(const v1::GenerateRequest& wanted,
                                                            const std::function<void(std::string_view)>& on_text,
                                                            const OnPrompt& on_prompt) {
  v1::GenerateRequest request = wanted;
  if (on_prompt) request.set_prompt_progress(true);
  using Clock = std::chrono::steady_clock;
  GenerationResult result;
  const Clock::time_point start = Clock::now();
  Clock::time_point first{}, last{};
  AnswerStream stream = client_.Generate(request);
  {
    const CancelOnSignal cancel(stream);
    for (v1::GenerateResponse response; stream.Read(response);) {
      if (response.has_prompt_progress() && on_prompt) {
        on_prompt(response.prompt_progress());
      } else if (response.has_accepted()) {
        result.specification = response.accepted().selection();
      } else if (response.has_delta() && response.delta().output_index() == 0) {
        const v1::GenerateResponse::Delta& delta = response.delta();
        last = Clock::now();
        if (result.tokens == 0 && delta.tokens_size() > 0) first = last;
        result.tokens += delta.tokens_size();
        result.text += delta.text();
        if (!delta.text().empty()) on_text(delta.text());
      } else if (response.has_output_finished() && response.output_finished().output_index() == 0) {
        result.reason = response.output_finished().reason();
        result.selection = response.output_finished().selection();
      } else if (response.has_usage()) {
        result.usage = response.usage();
      }
    }
    WINNOW_RETURN_IF_ERROR(stream.Finish());
  }
  result.time_to_first_token = first - start;
  result.time_after_first_token = last - first;
  return result;
}

std::string DescribeStats(const GenerationResult& result) {
  const v1::SelectionStats& selection = result.selection;
  std::string text;
  absl::StrAppendFormat(&text, "  time to first token    %.0f ms (%d prompt tokens)\n",
                        1e3 * result.time_to_first_token.count(), result.usage.prompt_tokens());
  absl::StrAppendFormat(&text, "  time per output token  %.2f ms (%d tokens)\n", 1e3 * result.SecondsPerToken(),
                        result.tokens);
  absl::StrAppendFormat(&text, "  selection              %s\n", result.specification);
  if (selection.decode_steps() == 0) return text;
  absl::StrAppendFormat(&text, "  context                %d tokens, %d rows resident per layer and head\n",
                        selection.context_tokens(), selection.resident_rows());
  if (selection.selection_lookups() > 0) {
    absl::StrAppendFormat(&text, "  selected rows          %.1f %% were resident already\n",
                          100.0 * selection.selection_hits() / selection.selection_lookups());
  }
  if (selection.has_captured_mass_mean()) {
    absl::StrAppendFormat(&text, "  captured mass          %.4f of the softmax (5th percentile %.4f)\n",
                          selection.captured_mass_mean(), selection.captured_mass_p5());
  }
  if (selection.has_captured_mass_before_mean()) {
    absl::StrAppendFormat(&text, "  before correction      %.4f of the softmax (5th percentile %.4f)\n",
                          selection.captured_mass_before_mean(), selection.captured_mass_before_p5());
    absl::StrAppendFormat(&text, "  corrected heads        %d by missed top-k, %d by more than that, %d rows read\n",
                          selection.missed_top_k_corrections(), selection.widened_corrections(),
                          selection.correction_rows());
  }
  absl::StrAppendFormat(&text, "  streamed               %.2f MiB in %d rows over %d steps\n",
                        selection.streamed_bytes() / 1048576.0, selection.streamed_rows(), selection.decode_steps());
  if (selection.preempted_count() > 0) {
    absl::StrAppendFormat(&text, "  preempted              %d times\n", selection.preempted_count());
  }
  if (selection.reattach_count() > 0) {
    absl::StrAppendFormat(&text, "  attached again         %d times%s\n", selection.reattach_count(),
                          selection.not_identical() ? " (under other numerics)" : "");
  }
  return text;
}

}  // namespace winnow
