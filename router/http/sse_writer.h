#pragma once
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "router/http/http_exchange.h"

namespace winnow {

// What an event has beside its data. Neither holds a line break.
struct SseFields {
  std::string_view name = {};  // empty: the event is a message
  std::string_view id = {};    // empty: clients keep the one before
};

// Server-sent events on an exchange; the head goes out with the first event. On the connection's thread.
class SseWriter {
 public:
  explicit SseWriter(std::shared_ptr<HttpExchange> exchange) : exchange_(std::move(exchange)) {}

  bool started() const { return started_; }
  // Of the head; before it goes out.
  void AddHeader(HttpHeader header) { headers_.push_back(std::move(header)); }
  void Start();
  // `data` holds no line break. False when the client is gone or lags too far behind.
  bool Event(std::string_view data, const SseFields& fields = {});
  // A line that clients ignore; keeps proxies from closing a quiet stream.
  bool Comment(std::string_view text);
  void Finish();

 private:
  std::shared_ptr<HttpExchange> exchange_;
  std::vector<HttpHeader> headers_{{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  bool started_ = false;
};

}  // namespace winnow
