#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "router/http/body_budget.h"
#include "router/http/event_loop.h"
#include "router/http/http_exchange.h"

namespace winnow {

// The exchange as a connection sees it: what the handler has produced and the connection has not written yet. On the
// connection's thread, except Post.
class ResponseBuffer : public HttpExchange {
 public:
  struct Limits {
    size_t max_stream_buffer_bytes = 0;
    bool keep_alive = true;  // as the request asked
    bool http_1_0 = false;
  };

  // `wake` is called when there is something to write, or the exchange overflowed; not after Close. `body_share` is
  // what the request's body has of the server's budget.
  ResponseBuffer(HttpRequest request, Limits limits, std::shared_ptr<EventLoop> loop, std::function<void()> wake,
                 BodyBudget::Share body_share = {})
      : request_(std::move(request)),
        body_share_(std::move(body_share)),
        limits_(limits),
        loop_(std::move(loop)),
        wake_(std::move(wake)) {}

  // The handler's side.
  const HttpRequest& request() const override { return request_; }
  void ReleaseBody() override;
  void Respond(HttpResponse response) override;
  void StartStream(HttpResponse head) override;
  bool Write(std::string_view data) override;
  void Finish() override;
  bool open() const override { return !closed_ && !overflowed_; }
  void OnClose(std::function<void(CloseReason)> callback) override;
  void Post(std::function<void()> task) override;
  void SetRoute(std::string_view route) override { route_ = route; }

  // The connection's side.
  bool has_output() const { return !head_.empty() || !body_.empty() || (finished_ && !end_taken_); }
  // The handler has nothing to add: what it produced is written even when the client has shut its sending side.
  bool finished() const { return finished_; }
  bool overflowed() const { return overflowed_; }
  bool streaming() const { return streaming_; }
  bool keep_alive() const { return limits_.keep_alive; }
  void set_close_after() { limits_.keep_alive = false; }
  int status() const { return status_; }
  const std::string& route() const { return route_; }
  // Everything produced so far, framed; the pieces are written one after the other.
  struct Output {
    std::string head;
    std::string body;
    std::string tail;
  };
  Output TakeOutput();
  void Close(CloseReason reason);

 private:
  HttpRequest request_;
  BodyBudget::Share body_share_;
  Limits limits_;
  const std::shared_ptr<EventLoop> loop_;
  std::function<void()> wake_;
  std::function<void(CloseReason)> on_close_;
  std::optional<CloseReason> close_reason_;

  std::string route_ = "none";
  int status_ = 0;
  std::string head_;
  std::string body_;
  bool streaming_ = false;
  bool chunked_ = false;
  bool finished_ = false;
  bool end_taken_ = false;
  bool overflowed_ = false;
  bool closed_ = false;
};

}  // namespace winnow
