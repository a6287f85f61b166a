#include "router/http/client_stream.h"

#include <boost/asio/write.hpp>
#include <utility>

namespace winnow {
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {
constexpr size_t kReadBytes = 16 << 10;  // of TLS, a record
}  // namespace

ClientStream::ClientStream(tcp::socket socket, TlsContext::Context tls)
    : socket_(std::move(socket)), context_(std::move(tls)) {
  if (context_ != nullptr) tls_.emplace(socket_, *context_);
}

asio::awaitable<void> ClientStream::Handshake(error_code& error) {
  if (!tls_) co_return;
  co_await tls_->async_handshake(asio::ssl::stream_base::server, asio::redirect_error(asio::use_awaitable, error));
}

void ClientStream::Receive(boost::beast::flat_buffer& input, std::function<void(error_code)> done) {
  if (!tls_) {
    return socket_.async_wait(tcp::socket::wait_read, [this, &input, done = std::move(done)](error_code error) {
      if (!error) {
        const size_t bytes = socket_.read_some(input.prepare(kReadBytes), error);
        input.commit(bytes);
      }
      done(error);
    });
  }
  received_ = std::make_unique<char[]>(kReadBytes);
  tls_->async_read_some(asio::buffer(received_.get(), kReadBytes),
                        [this, &input, done = std::move(done)](error_code error, size_t bytes) {
                          input.commit(asio::buffer_copy(input.prepare(bytes), asio::buffer(received_.get(), bytes)));
                          received_ = nullptr;
                          // A client that goes without a word of TLS goes all the same.
                          if (error == asio::ssl::error::stream_truncated) error = asio::error::eof;
                          done(error);
                        });
}

asio::awaitable<void> ClientStream::Write(const std::array<asio::const_buffer, 3>& buffers, error_code& error) {
  if (tls_) {
    co_await asio::async_write(*tls_, buffers, asio::redirect_error(asio::use_awaitable, error));
  } else {
    co_await asio::async_write(socket_, buffers, asio::redirect_error(asio::use_awaitable, error));
  }
}

void ClientStream::ShutdownSend() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

void ClientStream::Close() {
  error_code ignored;
  socket_.close(ignored);
}

}  // namespace winnow
