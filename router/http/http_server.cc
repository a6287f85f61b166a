#include "router/http/http_server.h"

#include <boost/asio/write.hpp>
#include <condition_variable>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "router/http/connection.h"
#include "router/http/response_head.h"

namespace winnow {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

HttpResponse DefaultHttpError(int status, std::string_view message) {
  std::string body = "{\"error\":{\"message\":\"";
  for (const char c : message) {
    if (static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7f && c != '"' && c != '\\')
      body += c;
  }
  absl::StrAppend(&body, "\",\"type\":\"", status < 500 ? "invalid_request_error" : "server_error",
                  "\",\"param\":null,\"code\":null}}");
  HttpResponse response{.status = status, .body = std::move(body)};
  if (status == 503) response.headers.push_back({"Retry-After", "1"});
  return response;
}

class HttpServer::Impl {
 public:
  explicit Impl(std::shared_ptr<const ConnectionContext> context) : context_(std::move(context)) {}

  absl::Status Listen();
  void Run();
  void Stop(std::chrono::milliseconds grace);
  uint16_t port() const { return port_; }

 private:
  void Accept();
  void Adopt(tcp::socket socket, std::shared_ptr<EventLoop> loop);
  void Forget(Connection* connection);

  const std::shared_ptr<const ConnectionContext> context_;
  std::vector<std::shared_ptr<EventLoop>> loops_;
  uint16_t port_ = 0;

  // On the first loop only.
  std::unique_ptr<tcp::acceptor> acceptor_;
  std::unique_ptr<asio::steady_timer> accept_retry_;
  std::unique_ptr<TlsContext> tls_;  // null: without TLS
  size_t next_loop_ = 0;

  std::mutex mutex_;
  std::condition_variable connection_gone_;
  bool stopping_ = false;                                                   // guarded by mutex_
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections_;  // guarded by mutex_
};

absl::Status HttpServer::Impl::Listen() {
  const HttpServerOptions& options = context_->options;
  for (int i = 0; i < std::max(1, options.num_threads); ++i) loops_.push_back(std::make_shared<EventLoop>());
  asio::io_context& first = loops_.front()->context();

  if (!options.tls.empty()) {
    WINNOW_ASSIGN_OR_RETURN(tls_, TlsContext::Load(options.tls, context_->hooks.on_warning));
  }
  error_code error;
  const auto failed = [&](std::string_view step) {
    return absl::FailedPreconditionError(absl::StrCat("cannot listen for HTTP on ", options.host, ":", options.port,
                                                      " (", AbslSv(step), "): ", error.message()));
  };
  tcp::resolver resolver(first);
  const auto endpoints = resolver.resolve(options.host, std::to_string(options.port),
                                          tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) return failed("resolve");
  const tcp::endpoint endpoint = endpoints.begin()->endpoint();
  acceptor_ = std::make_unique<tcp::acceptor>(first);
  acceptor_->open(endpoint.protocol(), error);
  if (error) return failed("socket");
  acceptor_->set_option(tcp::acceptor::reuse_address(true), error);
  if (error) return failed("reuse address");
  acceptor_->bind(endpoint, error);
  if (error) return failed("bind");
  acceptor_->listen(asio::socket_base::max_listen_connections, error);
  if (error) return failed("listen");
  port_ = acceptor_->local_endpoint(error).port();
  accept_retry_ = std::make_unique<asio::steady_timer>(first);
  return absl::OkStatus();
}

void HttpServer::Impl::Run() {
  loops_.front()->Post([this] { Accept(); });
  for (const auto& loop : loops_) loop->Run();
}

void HttpServer::Impl::Accept() {
  std::shared_ptr<EventLoop> loop = loops_[next_loop_++ % loops_.size()];
  acceptor_->async_accept(loop->context(), [this, loop](const error_code& error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor_->is_open()) return;
    if (error) {
      // Mostly "too many open files": wait for connections to close instead of spinning.
      if (context_->hooks.on_warning) context_->hooks.on_warning(absl::StrCat("cannot accept: ", error.message()));
      accept_retry_->expires_after(std::chrono::milliseconds(100));
      accept_retry_->async_wait([this](const error_code& cancelled) {
        if (!cancelled && acceptor_->is_open()) Accept();
      });
      return;
    }
    Adopt(std::move(socket), loop);
    Accept();
  });
}

void HttpServer::Impl::Adopt(tcp::socket socket, std::shared_ptr<EventLoop> loop) {
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const TlsContext::Context tls = tls_ ? tls_->Current() : nullptr;
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (connections_.size() < context_->options.max_connections) {
      connection = std::make_shared<Connection>(std::move(socket), tls, loop, context_,
                                                [this](Connection* gone) { Forget(gone); });
      connections_.emplace(connection.get(), connection);
    }
  }
  if (connection) {
    // The loop runs on its own thread.
    loop->Post([connection = std::move(connection)] { connection->Start(); });
    return;
  }
  if (context_->hooks.on_warning) context_->hooks.on_warning("connection refused: max_connections reached");
  if (tls != nullptr) return;  // a handshake would cost what there is too little of
  const HttpResponse response = context_->format_error(503, "This server has as many connections as it allows.");
  const std::string head =
      FormatResponseHead(response, {.content_length = response.body.size(), .keep_alive = false}, "");
  // A fresh socket takes a small answer without blocking; one that does not is closed without it.
  asio::write(socket, asio::buffer(head + response.body), ignored);
  socket.shutdown(tcp::socket::shutdown_send, ignored);
}

void HttpServer::Impl::Forget(Connection* connection) {
  std::lock_guard lock(mutex_);
  connections_.erase(connection);
  connection_gone_.notify_all();
}

void HttpServer::Impl::Stop(std::chrono::milliseconds grace) {
  // Locked weak pointers must be released without the mutex: the last reference of a connection calls Forget.
  const auto for_each = [this](void (Connection::*action)()) {
    std::vector<std::shared_ptr<Connection>> connections;
    {
      std::lock_guard lock(mutex_);
      for (const auto& [raw, weak] : connections_) {
        if (auto connection = weak.lock()) connections.push_back(std::move(connection));
      }
    }
    for (const auto& connection : connections) (connection.get()->*action)();
  };
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  loops_.front()->Post([this] {
    error_code ignored;
    acceptor_->close(ignored);
    accept_retry_->cancel();
  });
  for_each(&Connection::Drain);
  const auto empty = [this] { return connections_.empty(); };
  bool drained = false;
  {
    std::unique_lock lock(mutex_);
    drained = connection_gone_.wait_for(lock, grace, empty);
  }
  if (!drained) {
    for_each(&Connection::Abort);
    std::unique_lock lock(mutex_);
    connection_gone_.wait(lock, empty);
  }
  for (const auto& loop : loops_) loop->Stop();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  Stop(std::chrono::milliseconds(0));
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options, HttpHandler handler,
                                                              HttpHooks hooks, HttpErrorFormatter format_error) {
  auto context = std::make_shared<ConnectionContext>();
  context->bodies = std::make_shared<BodyBudget>(options.max_bodies_bytes);
  context->options = std::move(options);
  context->hooks = std::move(hooks);
  context->format_error = std::move(format_error);
  context->handler = std::move(handler);
  auto impl = std::make_unique<Impl>(std::move(context));
  WINNOW_RETURN_IF_ERROR(impl->Listen());
  impl->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

uint16_t HttpServer::port() const {
  return impl_->port();
}

void HttpServer::Stop(std::chrono::milliseconds grace) {
  impl_->Stop(grace);
}

}  // namespace winnow
