#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <filesystem>
#include <fstream>

#include "router/http/http_server.h"
#include "router/http/tls_context.h"
#include "tests/router/http/test_client.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_certificates.h"

namespace winnow {
namespace {

namespace asio = boost::asio;
namespace ssl = asio::ssl;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class HttpsTest : public ::testing::Test {
 protected:
  void StartServer(HttpServerOptions options = {}) {
    options.port = 0;
    options.tls = files_;
    auto server = HttpServer::Start(options, [](std::shared_ptr<HttpExchange> exchange) {
      exchange->Respond({.content_type = "text/plain", .body = std::string(200'000, 'x') + exchange->request().body});
    });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // What the server answers to a request over TLS; the reason where there is no connection.
  std::string Ask(const std::string& body) const {
    asio::io_context io;
    ssl::context context(ssl::context::tls_client);
    context.load_verify_file(authority_.certificate());
    context.set_verify_mode(ssl::verify_peer);
    ssl::stream<asio::ip::tcp::socket> stream(io, context);
    boost::system::error_code error;
    stream.lowest_layer().connect({asio::ip::address_v4::loopback(), server_->port()}, error);
    if (!error) stream.handshake(ssl::stream_base::client, error);
    if (error) return error.message();
    asio::write(stream, asio::buffer(absl::StrCat("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: ",
                                                  body.size(), "\r\n\r\n", body)));
    std::string answer;
    asio::read(stream, asio::dynamic_buffer(answer), error);
    return answer;
  }

  const TempDir folder_;
  const TestAuthority authority_{folder_.path()};
  const TlsFiles files_ = authority_.Issue("http", "DNS:localhost");
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpsTest, AnswersWhole) {
  StartServer();
  const std::string body(300'000, 'y');
  const std::string answer = Ask(body);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(answer.ends_with(std::string(200'000, 'x') + body));
}

TEST_F(HttpsTest, WhoDoesNotShakeHandsIsLeft) {
  HttpServerOptions options;
  options.header_timeout = std::chrono::milliseconds(50);
  StartServer(options);
  TestClient silent(server_->port());
  EXPECT_TRUE(silent.ReadsEnd());
  options.header_timeout = std::chrono::minutes(10);
  StartServer(options);
  TestClient plain(server_->port());
  plain.Request("GET", "/");
  EXPECT_THAT(plain.ReadHead(), ::testing::Not(HasSubstr("HTTP/"))) << "no answer without TLS";
}

TEST_F(HttpsTest, StopsWithClientsThatAreStillShakingHands) {
  StartServer();
  TestClient silent(server_->port());
  server_->Stop(std::chrono::milliseconds(10));
  EXPECT_TRUE(silent.ReadsEnd());
}

TEST_F(HttpsTest, FilesThatCannotServeAreRefusedAtTheStart) {
  HttpServerOptions options;
  options.port = 0;
  options.tls = {.certificate = files_.certificate, .key = folder_.path() + "/none.key", .authorities = ""};
  const absl::Status status = HttpServer::Start(options, nullptr).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot read " + options.tls.key));
}

TEST_F(HttpsTest, ChangedFilesThatCannotServeChangeNothing) {
  std::vector<std::string> warnings;
  const auto context = TlsContext::Load(files_, [&](std::string_view text) { warnings.emplace_back(text); });
  ASSERT_TRUE(context.ok()) << context.status();
  const TlsContext::Context first = (*context)->Current();
  EXPECT_EQ((*context)->Current(), first);
  std::ofstream(files_.certificate) << "nothing";
  while (warnings.empty()) EXPECT_EQ((*context)->Current(), first);
  EXPECT_THAT(warnings.front(), HasSubstr("has no certificate"));
  authority_.Issue("http", "DNS:localhost");
  while ((*context)->Current() == first) {
  }
  EXPECT_EQ(warnings.size(), 1u) << "said once";
}

}  // namespace
}  // namespace winnow
