#include "router/http/sse_writer.h"

#include "common/base/status.h"

namespace winnow {

void SseWriter::Start() {
  if (started_) return;
  started_ = true;
  exchange_->StartStream(
      {.status = 200, .content_type = "text/event-stream; charset=utf-8", .headers = std::move(headers_)});
}

bool SseWriter::Event(std::string_view data, std::string_view id) {
  Start();
  if (id.empty()) return exchange_->Write(absl::StrCat("data: ", AbslSv(data), "\n\n"));
  return exchange_->Write(absl::StrCat("id: ", AbslSv(id), "\ndata: ", AbslSv(data), "\n\n"));
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
