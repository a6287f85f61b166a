#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "router/http/http_message.h"

namespace winnow {

enum class CloseReason {
  kCompleted,     // the whole response was written
  kDisconnected,  // the client went away first
  kSlowReader,    // the client did not read fast enough: its buffer was full, or one write took too long
  kServerStop,    // the server's grace period ended
};

constexpr std::string_view CloseReasonName(CloseReason reason) {
  switch (reason) {
    case CloseReason::kCompleted:
      return "completed";
    case CloseReason::kDisconnected:
      return "disconnected";
    case CloseReason::kSlowReader:
      return "slow_reader";
    case CloseReason::kServerStop:
      return "server_stop";
  }
  return "unknown";
}

// One request and the way to answer it: either Respond once, or StartStream, Write..., Finish.
//
// Everything except Post runs on the connection's thread: a handler is called there, and work from other threads comes
// back through Post. Calls after the exchange has closed do nothing.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;

  // Drops the request's body, for which others may be waiting. A handler that has read it and whose answer may take
  // long calls this.
  virtual void ReleaseBody() = 0;

  // The whole answer. The body is left out for HEAD.
  virtual void Respond(HttpResponse response) = 0;

  // Sends the head of a chunked response; `head.body` is not used.
  virtual void StartStream(HttpResponse head) = 0;
  // Queues bytes of the body. False when the exchange is over or just became so because the client lags behind by more
  // than the server's stream buffer: OnClose follows then.
  virtual bool Write(std::string_view data) = 0;
  virtual void Finish() = 0;

  // False after OnClose was called, or when it is certain to be.
  virtual bool open() const = 0;

  // `callback` is called exactly once, when the exchange ends for whatever reason, and dropped then.
  virtual void OnClose(std::function<void(CloseReason)> callback) = 0;

  // Runs `task` on the connection's thread, after the caller has returned. Any thread; never blocks. The task also runs
  // when the exchange has closed meanwhile.
  virtual void Post(std::function<void()> task) = 0;

  // The route's name for metrics; the route table sets it.
  virtual void SetRoute(std::string_view route) = 0;
};

}  // namespace winnow
