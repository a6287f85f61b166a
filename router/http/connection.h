#pragma once
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "router/http/body_budget.h"
#include "router/http/client_stream.h"
#include "router/http/coroutines.h"
#include "router/http/event_loop.h"
#include "router/http/http_options.h"
#include "router/http/response_buffer.h"

namespace winnow {

// What all connections of a server share; constant while it runs.
struct ConnectionContext {
  HttpServerOptions options;
  HttpHooks hooks;
  HttpErrorFormatter format_error;
  HttpHandler handler;
  std::shared_ptr<BodyBudget> bodies;
};

// One client connection: reads a request, lets the handler answer, writes the answer, and again. It lives on one event
// loop with one thread, so it has no locks; it keeps itself alive until it is closed.
//
// While a response is pending a read is always outstanding, so that a client that goes away is noticed at once. End of
// file counts as going away as long as the handler still has to produce something.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `tls` null: without TLS.
  Connection(boost::asio::ip::tcp::socket socket, TlsContext::Context tls, std::shared_ptr<EventLoop> loop,
             std::shared_ptr<const ConnectionContext> context, std::function<void(Connection*)> on_closed);
  ~Connection();

  // On the event loop: starts to serve.
  void Start();
  // Any thread: close when the current response is complete; at once when there is none.
  void Drain();
  // Any thread: close now.
  void Abort();

 private:
  using Clock = std::chrono::steady_clock;
  struct ParsedRequest;

  boost::asio::awaitable<void> Serve();
  boost::asio::awaitable<bool> Handshake();
  boost::asio::awaitable<std::optional<ParsedRequest>> ReadRequest();
  // Writes the exchange's output until it is complete; false when the connection is of no use any more.
  boost::asio::awaitable<bool> WriteResponse(ResponseBuffer& exchange);
  // Both end the connection in order.
  boost::asio::awaitable<void> RefuseAndLinger(int status, std::string_view message);
  boost::asio::awaitable<void> Linger();
  boost::asio::awaitable<bool> WriteAll(const ResponseBuffer::Output& output);
  // Waits for more input; false at end of file, on an error, at the deadline, and when the server drains and the
  // connection is `idle`: no request is being read.
  boost::asio::awaitable<bool> ReadMore(Clock::time_point deadline, bool idle = false);
  // Closes the stream after `limit`, unless write_guard_ is cancelled before.
  void GuardFor(std::chrono::milliseconds limit);
  boost::asio::awaitable<void> WaitForEvent(Clock::time_point deadline);

  void StartRead();
  void Wake();
  void CloseSocket();
  CloseReason AbortReason() const;
  void ReportEnd(const ResponseBuffer& exchange, CloseReason reason);

  const std::shared_ptr<const ConnectionContext> context_;
  const std::shared_ptr<EventLoop> loop_;
  std::function<void(Connection*)> on_closed_;

  ClientStream stream_;
  boost::asio::steady_timer event_;        // its cancellation is the wake-up
  boost::asio::steady_timer write_guard_;  // closes the stream when a write, or the handshake, takes too long
  boost::beast::flat_buffer input_;
  std::shared_ptr<ResponseBuffer> exchange_;

  bool read_pending_ = false;
  bool end_of_input_ = false;
  bool broken_ = false;  // the socket failed or was closed
  bool write_timed_out_ = false;
  bool draining_ = false;
  bool aborted_ = false;
};

}  // namespace winnow
