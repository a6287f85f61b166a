#include "router/http/response_buffer.h"

#include "common/base/check.h"
#include "common/base/status.h"
#include "router/http/response_head.h"

namespace winnow {

void ResponseBuffer::ReleaseBody() {
  std::string().swap(request_.body);
  body_share_.Release();
}

void ResponseBuffer::Respond(HttpResponse response) {
  if (closed_) return;
  WINNOW_CHECK(status_ == 0);
  status_ = response.status;
  ResponseFraming framing{.keep_alive = limits_.keep_alive, .http_1_0 = limits_.http_1_0};
  if (response.status != 204 && response.status != 304) framing.content_length = response.body.size();
  head_ = FormatResponseHead(response, framing, request_.request_id);
  if (request_.method != HttpMethod::kHead) body_ = std::move(response.body);
  finished_ = true;
  wake_();
}

void ResponseBuffer::StartStream(HttpResponse head) {
  if (closed_) return;
  WINNOW_CHECK(status_ == 0);
  status_ = head.status;
  streaming_ = true;
  chunked_ = !limits_.http_1_0;
  if (limits_.http_1_0) limits_.keep_alive = false;
  head_ = FormatResponseHead(
      head, {.chunked = chunked_, .keep_alive = limits_.keep_alive, .http_1_0 = limits_.http_1_0}, request_.request_id);
  wake_();
}

bool ResponseBuffer::Write(std::string_view data) {
  if (!open() || finished_) return false;
  if (body_.size() + data.size() > limits_.max_stream_buffer_bytes) {
    overflowed_ = true;
    wake_();
    return false;
  }
  body_ += data;
  wake_();
  return true;
}

void ResponseBuffer::Finish() {
  if (!open() || finished_) return;
  finished_ = true;
  wake_();
}

void ResponseBuffer::OnClose(std::function<void(CloseReason)> callback) {
  if (close_reason_) return callback(*close_reason_);
  on_close_ = std::move(callback);
}

void ResponseBuffer::Post(std::function<void()> task) {
  loop_->Post(std::move(task));
}

ResponseBuffer::Output ResponseBuffer::TakeOutput() {
  Output output{.head = std::exchange(head_, {}), .body = std::exchange(body_, {}), .tail = {}};
  if (chunked_ && !output.body.empty()) {
    absl::StrAppend(&output.head, absl::Hex(output.body.size()), "\r\n");
    output.tail = "\r\n";
  }
  if (finished_) {
    end_taken_ = true;
    if (chunked_) output.tail += "0\r\n\r\n";
  }
  return output;
}

void ResponseBuffer::Close(CloseReason reason) {
  if (closed_) return;
  closed_ = true;
  close_reason_ = reason;
  if (auto callback = std::exchange(on_close_, nullptr)) callback(reason);
}

}  // namespace winnow
