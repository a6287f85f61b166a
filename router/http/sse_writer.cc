#include "router/http/sse_writer.h"

#include "common/base/status.h"

namespace winnow {

void SseWriter::Start() {
  if (started_) return;
  started_ = true;
  exchange_->StartStream({.status = 200,
                          .content_type = "text/event-stream; charset=utf-8",
                          .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}});
}

bool SseWriter::Event(std::string_view data, std::string_view name) {
  Start();
  const std::string head = name.empty() ? "" : absl::StrCat("event: ", AbslSv(name), "\n");
  return exchange_->Write(absl::StrCat(head, "data: ", AbslSv(data), "\n\n"));
}

bool SseWriter::Comment(std::string_view text) {
  Start();
  return exchange_->Write(absl::StrCat(": ", AbslSv(text), "\n\n"));
}

void SseWriter::Finish() {
  Start();
  exchange_->Finish();
}

}  // namespace winnow
