#pragma once
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <functional>
#include <memory>
#include <optional>

#include "router/http/coroutines.h"
#include "router/http/tls_context.h"

namespace winnow {

// The bytes of a client, with TLS or without. On the connection's thread; at most one Receive and one Write at a time.
class ClientStream {
 public:
  using error_code = boost::system::error_code;

  // `tls` null: without.
  ClientStream(boost::asio::ip::tcp::socket socket, TlsContext::Context tls);

  // Before all else.
  boost::asio::awaitable<void> Handshake(error_code& error);
  // Appends what comes next to `input`, which must live until `done`; would_block where nothing was there after all.
  // While nothing comes, a stream without TLS holds no buffer for it.
  void Receive(boost::beast::flat_buffer& input, std::function<void(error_code)> done);
  boost::asio::awaitable<void> Write(const std::array<boost::asio::const_buffer, 3>& buffers, error_code& error);
  // Tells the client that nothing more will come. By the end of TCP's stream alone: the length of every answer is known
  // without that.
  void ShutdownSend();
  // Ends what is under way.
  void Close();

 private:
  using Tls = boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>;

  boost::asio::ip::tcp::socket socket_;
  const TlsContext::Context context_;
  std::optional<Tls> tls_;
  std::unique_ptr<char[]> received_;  // while a Receive with TLS is under way
};

}  // namespace winnow
