#pragma once
#include <memory>
#include <string_view>

#include "router/http/http_exchange.h"

namespace winnow {

// Server-sent events on an exchange; the head goes out with the first event. On the connection's thread.
class SseWriter {
 public:
  explicit SseWriter(std::shared_ptr<HttpExchange> exchange) : exchange_(std::move(exchange)) {}

  bool started() const { return started_; }
  void Start();
  // `data` holds no line break; an event without a name is a message. False when the client is gone or lags too far
  // behind.
  bool Event(std::string_view data, std::string_view name = {});
  // A line that clients ignore; keeps proxies from closing a quiet stream.
  bool Comment(std::string_view text);
  void Finish();

 private:
  std::shared_ptr<HttpExchange> exchange_;
  bool started_ = false;
};

}  // namespace winnow
