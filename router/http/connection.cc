#include "router/http/connection.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "common/base/status.h"
#include "router/http/request_framing.h"
#include "router/http/request_id.h"

namespace winnow {
namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

// Input that a client may send ahead while a response is pending; what exceeds it waits in the kernel.
constexpr size_t kMaxPipelinedBytes = 64 << 10;

using RequestParser = http::request_parser<http::string_body>;

std::string_view Sv(boost::beast::string_view s) {
  return {s.data(), s.size()};
}

Refusal RefusalOf(const error_code& error, const HttpServerOptions& options) {
  if (error == http::error::body_limit) {
    return {413,
            absl::StrCat("The request body is larger than this server's limit of ", options.max_body_bytes, " bytes.")};
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return {431, absl::StrCat("The request head is larger than this server's limit of ", options.max_header_bytes,
                              " bytes.")};
  }
  return {400, absl::StrCat("The request is not valid HTTP/1.1: ", error.message(), ".")};
}

// The request as far as its head says it. Made before the body is read, so that no field of a chunked body's trailer
// passes for a header.
HttpRequest RequestOf(const http::request_header<>& head) {
  HttpRequest request;
  request.method = ParseMethod(Sv(head.method_string()));
  std::string_view target = Sv(head.target());
  // The absolute form ("http://host/path") is for proxies; its path is what counts here.
  if (const size_t scheme = target.find("://"); !target.starts_with('/') && scheme != target.npos) {
    const size_t slash = target.find('/', scheme + 3);
    target = slash == target.npos ? "/" : target.substr(slash);
  }
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != target.npos) request.query = target.substr(question + 1);
  for (const auto& field : head) {
    request.headers.push_back({std::string(Sv(field.name_string())), std::string(Sv(field.value()))});
  }
  const std::string* id = request.FindHeader("x-request-id");
  request.request_id = id != nullptr && IsUsableRequestId(*id) ? *id : NewRequestId();
  return request;
}

}  // namespace

struct Connection::ParsedRequest {
  HttpRequest request;
  ResponseBuffer::Limits limits;
  BodyBudget::Share body_share;
};

Connection::Connection(asio::ip::tcp::socket socket, TlsContext::Context tls, std::shared_ptr<EventLoop> loop,
                       std::shared_ptr<const ConnectionContext> context, std::function<void(Connection*)> on_closed)
    : context_(std::move(context)),
      loop_(std::move(loop)),
      on_closed_(std::move(on_closed)),
      stream_(std::move(socket), std::move(tls)),
      event_(loop_->context()),
      write_guard_(loop_->context()) {
  if (context_->hooks.on_connections) context_->hooks.on_connections(1);
}

Connection::~Connection() {
  if (exchange_) exchange_->Close(CloseReason::kServerStop);
  if (context_->hooks.on_connections) context_->hooks.on_connections(-1);
  on_closed_(this);
}

void Connection::Start() {
  asio::co_spawn(
      loop_->context(),
      [self = shared_from_this()]() -> asio::awaitable<void> {
        co_await self->Serve();
        self->CloseSocket();
      },
      asio::detached);
}

void Connection::Drain() {
  loop_->Post([self = shared_from_this()] {
    self->draining_ = true;
    if (self->exchange_) self->exchange_->set_close_after();
    self->Wake();
  });
}

void Connection::Abort() {
  loop_->Post([self = shared_from_this()] {
    self->aborted_ = true;
    self->CloseSocket();
    self->Wake();
  });
}

asio::awaitable<bool> Connection::Handshake() {
  GuardFor(context_->options.header_timeout);
  error_code error;
  co_await stream_.Handshake(error);
  write_guard_.cancel();
  co_return !error && !broken_;
}

asio::awaitable<void> Connection::Serve() {
  if (!co_await Handshake()) co_return;
  while (!draining_ && !broken_) {
    std::optional<ParsedRequest> parsed = co_await ReadRequest();
    if (!parsed) co_return;
    if (draining_) parsed->limits.keep_alive = false;
    // A stream may stay open for long; it needs no read buffer.
    if (input_.size() == 0) input_.shrink_to_fit();
    const auto wake = [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->Wake();
    };
    exchange_ = std::make_shared<ResponseBuffer>(std::move(parsed->request), parsed->limits, loop_, wake,
                                                 std::move(parsed->body_share));
    parsed.reset();
    context_->handler(exchange_);
    const bool usable = co_await WriteResponse(*exchange_);
    exchange_.reset();
    if (!usable) {
      if (!broken_) co_await Linger();
      co_return;
    }
  }
}

asio::awaitable<std::optional<Connection::ParsedRequest>> Connection::ReadRequest() {
  const HttpServerOptions& options = context_->options;
  if (input_.size() == 0 && !co_await ReadMore(Clock::now() + options.idle_timeout, true)) co_return std::nullopt;

  RequestParser parser;  // not eager until the head was looked at: nothing of the body is parsed before
  parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
  parser.body_limit(options.max_body_bytes);
  Clock::time_point deadline = Clock::now() + options.header_timeout;
  ParsedRequest parsed{.request = {}, .limits = {}, .body_share = BodyBudget::Share(context_->bodies)};
  bool head_seen = false;
  while (!parser.is_done()) {
    if (input_.size() == 0 && !co_await ReadMore(deadline)) break;
    error_code error;
    const size_t parsed_bytes = parser.put(input_.data(), error);
    std::optional<Refusal> refusal;
    if (error && error != http::error::need_more) {
      refusal = RefusalOf(error, options);
    } else if (parser.is_header_done() && !head_seen) {
      refusal = CheckHead({static_cast<const char*>(input_.data().data()), parsed_bytes}, parser.get());
    }
    input_.consume(parsed_bytes);
    // What the parser wants more of is a line: of the head, which it limits itself, of a chunk's size, or the trailer.
    if (!refusal && error && input_.size() > options.max_header_bytes) {
      refusal = RefusalOf(http::error::header_limit, options);
    }
    if (!refusal && !parsed.body_share.GrowTo(parser.get().body().size())) {
      refusal = {503, absl::StrCat("This server holds as many bytes of request bodies as it may, ",
                                   context_->bodies->max_bytes(), ".")};
    }
    if (refusal) {
      parsed.body_share.Release();
      co_await RefuseAndLinger(refusal->status, refusal->message);
      co_return std::nullopt;
    }
    if (parser.is_header_done() && !head_seen) {
      head_seen = true;
      parser.eager(true);
      deadline = Clock::now() + options.body_timeout;
      const bool http_1_0 = parser.get().version() == 10;
      parsed.request = RequestOf(parser.get());
      parsed.limits = {.max_stream_buffer_bytes = options.max_stream_buffer_bytes,
                       .keep_alive = parser.get().keep_alive(),
                       .http_1_0 = http_1_0};
      const bool body_awaited = !parser.is_done() && input_.size() == 0 && !http_1_0;
      if (body_awaited && parsed.request.FindHeader("expect") != nullptr) {
        ResponseBuffer::Output interim;
        interim.head = "HTTP/1.1 100 Continue\r\n\r\n";
        if (!co_await WriteAll(interim)) co_return std::nullopt;
      }
    }
    if (error && !co_await ReadMore(deadline)) break;
  }
  if (!parser.is_done()) {
    if (!broken_ && !end_of_input_) co_await RefuseAndLinger(408, "The request did not arrive in time.");
    co_return std::nullopt;
  }
  parsed.request.body = std::move(parser.get().body());
  parsed.request.received_at = Clock::now();
  co_return std::move(parsed);
}

asio::awaitable<bool> Connection::WriteResponse(ResponseBuffer& exchange) {
  bool stream_reported = false;
  CloseReason reason = CloseReason::kCompleted;
  for (;;) {
    if (input_.size() < kMaxPipelinedBytes) StartRead();
    if (broken_ || exchange.overflowed() || (end_of_input_ && !exchange.finished())) {
      reason = AbortReason();
      break;
    }
    if (exchange.has_output()) {
      if (exchange.streaming() && !stream_reported) {
        stream_reported = true;
        if (context_->hooks.on_streams) context_->hooks.on_streams(1);
      }
      // Named, so that the buffers outlive the suspension.
      const ResponseBuffer::Output output = exchange.TakeOutput();
      if (!co_await WriteAll(output)) {
        reason = AbortReason();
        break;
      }
      continue;
    }
    if (exchange.finished()) break;
    co_await WaitForEvent(Clock::time_point::max());
  }
  if (stream_reported && context_->hooks.on_streams) context_->hooks.on_streams(-1);
  const bool keep_alive = reason == CloseReason::kCompleted && exchange.keep_alive();
  if (reason != CloseReason::kCompleted) CloseSocket();
  ReportEnd(exchange, reason);
  exchange.Close(reason);
  co_return keep_alive;
}

asio::awaitable<void> Connection::RefuseAndLinger(int status, std::string_view message) {
  HttpRequest none;
  none.request_id = NewRequestId();
  none.received_at = Clock::now();
  ResponseBuffer refusal(std::move(none), {.keep_alive = false}, loop_, [] {});
  refusal.SetRoute("refused");
  refusal.Respond(context_->format_error(status, message));
  const ResponseBuffer::Output output = refusal.TakeOutput();
  const bool written = co_await WriteAll(output);
  ReportEnd(refusal, written ? CloseReason::kCompleted : AbortReason());
  if (written) co_await Linger();
}

// What the client has sent without being asked may still be arriving. Closing right away would reset the connection and
// could destroy the answer before the client has read it, so what still comes is dropped for a while first.
asio::awaitable<void> Connection::Linger() {
  stream_.ShutdownSend();
  const Clock::time_point deadline = Clock::now() + context_->options.linger_timeout;
  do {
    input_.consume(input_.size());
  } while (!draining_ && Clock::now() < deadline && co_await ReadMore(deadline, /*idle=*/true));
}

void Connection::GuardFor(std::chrono::milliseconds limit) {
  write_guard_.expires_after(limit);
  write_guard_.async_wait([weak = weak_from_this()](const error_code& error) {
    auto self = weak.lock();
    if (error || !self) return;
    self->write_timed_out_ = true;
    self->CloseSocket();
  });
}

asio::awaitable<bool> Connection::WriteAll(const ResponseBuffer::Output& output) {
  GuardFor(context_->options.write_timeout);
  const std::array<asio::const_buffer, 3> buffers = {asio::buffer(output.head), asio::buffer(output.body),
                                                     asio::buffer(output.tail)};
  error_code error;
  co_await stream_.Write(buffers, error);
  write_guard_.cancel();
  if (error) broken_ = true;
  co_return !broken_;
}

asio::awaitable<bool> Connection::ReadMore(Clock::time_point deadline, bool idle) {
  const size_t before = input_.size();
  StartRead();
  while (input_.size() == before && !end_of_input_ && !broken_ && Clock::now() < deadline) {
    if (draining_ && idle) co_return false;
    co_await WaitForEvent(deadline);
  }
  co_return input_.size() > before && !broken_;
}

asio::awaitable<void> Connection::WaitForEvent(Clock::time_point deadline) {
  event_.expires_at(deadline);
  error_code ignored;
  co_await event_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

void Connection::StartRead() {
  if (read_pending_ || end_of_input_ || broken_) return;
  read_pending_ = true;
  stream_.Receive(input_, [self = shared_from_this()](error_code error) {
    self->read_pending_ = false;
    if (error == asio::error::eof) {
      self->end_of_input_ = true;
    } else if (error && error != asio::error::would_block) {
      self->broken_ = true;
    }
    self->Wake();
  });
}

void Connection::Wake() {
  // A write under way must not keep a lost exchange alive: closing the socket ends it.
  if (exchange_ && (exchange_->overflowed() || (end_of_input_ && !exchange_->finished()))) CloseSocket();
  event_.cancel();
}

void Connection::CloseSocket() {
  broken_ = true;
  stream_.Close();
}

CloseReason Connection::AbortReason() const {
  if (aborted_) return CloseReason::kServerStop;
  if (write_timed_out_ || (exchange_ && exchange_->overflowed())) return CloseReason::kSlowReader;
  return CloseReason::kDisconnected;
}

void Connection::ReportEnd(const ResponseBuffer& exchange, CloseReason reason) {
  const HttpHooks& hooks = context_->hooks;
  const HttpRequest& request = exchange.request();
  if (hooks.on_request) {
    const std::chrono::duration<double> seconds = Clock::now() - request.received_at;
    // 499: the client went away before there was a status.
    hooks.on_request(exchange.route(), MethodName(request.method), exchange.status() == 0 ? 499 : exchange.status(),
                     seconds.count());
  }
  if (reason == CloseReason::kCompleted) return;
  if (hooks.on_cancelled) hooks.on_cancelled(reason);
  if (hooks.on_warning && reason != CloseReason::kDisconnected) {
    hooks.on_warning(absl::StrCat("request ", request.request_id, " to ", request.path,
                                  " cancelled: ", AbslSv(CloseReasonName(reason))));
  }
}

}  // namespace winnow
