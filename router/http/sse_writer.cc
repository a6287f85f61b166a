#include "router/http/sse_writer.h"

#include "common/base/status.h"

namespace winnow {

void SseWriter::Start() {
  if (started_) return;
  started_ = true;
  exchange_->StartStream(
      {.status = 200, .content_type = "text/event-stream; charset=utf-8", .headers = std::move(headers_)});
}

bool SseWriter::Event(std::string_view data, const SseFields& fields) {
  Start();
  const std::string head = absl::StrCat(fields.name.empty() ? "" : absl::StrCat("event: ", AbslSv(fields.name), "\n"),
                                        fields.id.empty() ? "" : absl::StrCat("id: ", AbslSv(fields.id), "\n"));
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
