// How requests are read from a connection, and which are refused.
#include <gtest/gtest.h>

#include "tests/router/http/http_server_fixture.h"
#include "tests/router/http/test_client.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;

TEST_F(HttpServerTest, AnswersSeveralRequestsOnOneConnection) {
  Start();
  TestClient client(port());
  for (int i = 0; i < 3; ++i) {
    client.Request("GET", "/hello");
    const TestClient::Response response = client.ReadResponse();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "hello");
    EXPECT_EQ(response.Header("Connection"), "");
  }
  client.Request("GET", "/hello", "", "Connection: close\r\n");
  EXPECT_EQ(client.ReadResponse().Header("Connection"), "close");
  EXPECT_TRUE(client.ReadsEnd());
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Start();
  TestClient client(port());
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\none"
      "GET /hello HTTP/1.1\r\nHost: t\r\n\r\n"
      "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nthree");
  EXPECT_EQ(client.ReadResponse().body, "one");
  EXPECT_EQ(client.ReadResponse().body, "hello");
  EXPECT_EQ(client.ReadResponse().body, "three");
}

TEST_F(HttpServerTest, KeepsARequestThatArrivesDuringAStream) {
  Start();
  TestClient client(port());
  client.Request("POST", "/hold");
  Exchange exchange = Held();
  client.Request("GET", "/hello");
  RunOn(exchange, [&] {
    exchange->StartStream({});
    EXPECT_TRUE(exchange->Write("streamed"));
    exchange->Finish();
  });
  EXPECT_EQ(client.ReadResponse().body, "streamed");
  EXPECT_EQ(client.ReadResponse().body, "hello");
}

TEST_F(HttpServerTest, ReadsRequestsByteByByte) {
  Start();
  TestClient client(port());
  const std::string request = "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nabcd";
  for (const char c : request) client.Send(std::string_view(&c, 1));
  EXPECT_EQ(client.ReadResponse().body, "abcd");
}

TEST_F(HttpServerTest, ReadsChunkedBodies) {
  Start();
  TestClient client(port());
  client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
  client.Send("7;ext=1\r\n, world\r\n0\r\nTrailer: x\r\n\r\n");
  EXPECT_EQ(client.ReadResponse().body, "hello, world");
  client.Request("GET", "/hello");
  EXPECT_EQ(client.ReadResponse().body, "hello");
}

TEST_F(HttpServerTest, AnswersExpectContinueBeforeTheBody) {
  Start();
  TestClient client(port());
  client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadResponse().status, 100);
  client.Send("ok");
  EXPECT_EQ(client.ReadResponse().body, "ok");
}

TEST_F(HttpServerTest, AnswersHeadAndOptions) {
  Start();
  TestClient client(port());
  client.Request("HEAD", "/hello");
  const TestClient::Response head = client.ReadResponse(/*head_only=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.Header("Content-Length"), "5");
  client.Request("OPTIONS", "/hello");
  const TestClient::Response options = client.ReadResponse();
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.Header("Allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(options.Header("Content-Length"), "");
}

TEST_F(HttpServerTest, NamesUnknownPathsAndMethods) {
  Start();
  TestClient client(port());
  client.Request("GET", "/nothing?x=1");
  const TestClient::Response missing = client.ReadResponse();
  EXPECT_EQ(missing.status, 404);
  EXPECT_NE(missing.body.find("/nothing"), std::string::npos);
  client.Request("DELETE", "/echo");
  const TestClient::Response wrong = client.ReadResponse();
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.Header("Allow"), "POST, OPTIONS");
  client.Request("GET", "/tail/a%2Fb/c");
  EXPECT_EQ(client.ReadResponse().body, "a/b/c");
  EXPECT_EQ(Reported(3), (std::vector<std::string>{"GET unknown 404", "DELETE /echo 405", "GET /tail/* 200"}));
}

TEST_F(HttpServerTest, EchoesUsableRequestIdsAndMakesOthers) {
  Start();
  TestClient client(port());
  client.Request("GET", "/hello", "", "X-Request-ID: abc-1\r\n");
  EXPECT_EQ(client.ReadResponse().Header("x-request-id"), "abc-1");
  client.Request("GET", "/hello", "", "X-Request-ID: a b\r\n");
  EXPECT_EQ(client.ReadResponse().Header("x-request-id").size(), 32u);
}

TEST_F(HttpServerTest, RefusesABodyOverTheLimit) {
  Start({.max_body_bytes = 1000});
  {
    TestClient client(port());
    client.Request("POST", "/echo", std::string(1000, 'x'));
    EXPECT_EQ(client.ReadResponse().body.size(), 1000u);
    client.Request("POST", "/echo", std::string(1001, 'x'));
    const TestClient::Response response = client.ReadResponse();
    EXPECT_EQ(response.status, 413);
    EXPECT_NE(response.body.find("1000 bytes"), std::string::npos);
    EXPECT_TRUE(client.ReadsEnd());
  }
  // Chunked: the size is known only as it arrives. The answer survives although most of the body is never wanted.
  TestClient client(port());
  client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) client.Send("64\r\n" + std::string(100, 'x') + "\r\n");
  EXPECT_EQ(client.ReadResponse().status, 413);
}

TEST_F(HttpServerTest, RefusesHeadsThatAreTooLargeOrMalformed) {
  Start({.max_header_bytes = 2000});
  const struct {
    std::string request;
    int status;
  } cases[] = {
      {"GET /hello HTTP/1.1\r\nHost: t\r\nX: " + std::string(3000, 'x') + "\r\n\r\n", 431},
      {"GET /" + std::string(5000, 'x'), 431},
      {"nonsense\r\n\r\n", 400},
      {"GET /hello HTTP/1.1\r\n\r\n", 400},  // no Host
      {"GET /hello HTTP/2.0\r\nHost: t\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
      {"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 415},
      {"POST /echo HTTP/1.1\r\nHost: t\r\nExpect: wonders\r\nContent-Length: 1\r\n\r\nx", 417},
  };
  for (const auto& c : cases) {
    TestClient client(port());
    client.Send(c.request);
    EXPECT_EQ(client.ReadResponse().status, c.status) << c.request.substr(0, 100);
    EXPECT_TRUE(client.ReadsEnd());
  }
}

// Every request here is one that another server on the path could take to end elsewhere. What follows it must not be
// served: it may be the body of the request as the other server saw it.
TEST_F(HttpServerTest, ServesNothingBehindARequestWhoseEndIsInDoubt) {
  Start({.max_body_bytes = 1000});
  const struct {
    std::string name;
    std::string head;  // after the request line and Host
    int status;
  } cases[] = {
      {"unknown coding", "Transfer-Encoding: xchunked\r\n\r\n", 501},
      {"gzip", "Transfer-Encoding: gzip\r\n\r\n", 501},
      {"identity", "Transfer-Encoding: identity\r\n\r\n", 501},
      {"chunked is not last", "Transfer-Encoding: chunked, gzip\r\n\r\n", 501},
      {"two codings", "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {"no coding", "Transfer-Encoding: \r\n\r\n", 501},
      {"chunked twice", "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400},
      {"chunked in two headers", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"unknown coding and a length", "Content-Length: 0\r\nTransfer-Encoding: x\r\n\r\n", 400},
      {"length before chunked", "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"length behind chunked", "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400},
      {"two lengths", "Content-Length: 0\r\nContent-Length: 5\r\n\r\n", 400},
      {"the same length twice", "Content-Length: 0\r\nContent-Length: 0\r\n\r\n", 400},
      {"list of lengths", "Content-Length: 0, 0\r\n\r\n", 400},
      {"negative length", "Content-Length: -1\r\n\r\n", 400},
      {"signed length", "Content-Length: +0\r\n\r\n", 400},
      {"hexadecimal length", "Content-Length: 0x0\r\n\r\n", 400},
      {"no length", "Content-Length: \r\n\r\n", 400},
      {"length that overflows", "Content-Length: 18446744073709551616\r\n\r\n", 400},
      {"huge length", "Content-Length: 18446744073709551615\r\n\r\n", 413},
      {"length over the limit", "Content-Length: 1001\r\n\r\n", 413},
      {"chunk over the limit", "Transfer-Encoding: chunked\r\n\r\n3e9\r\n", 413},
      {"chunk that overflows", "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n", 400},
      {"negative chunk", "Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400},
      {"chunk line without carriage return", "Transfer-Encoding: chunked\r\n\r\n0\n\n\r\n", 400},
      {"chunk longer than its size", "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", 400},
      {"length in a trailer", "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 1\r\n\r\n", 400},
      {"folded header", "X: a\r\n Content-Length: 5\r\n\r\n", 400},
      {"folded coding", "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400},
      {"folded by a tab", "X: a\r\n\tb\r\n\r\n", 400},
      {"space before the colon", "Content-Length : 0\r\n\r\n", 400},
      {"tab before the colon", "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n", 400},
      {"line without carriage return", "X: a\nContent-Length: 0\r\n\r\n", 400},
      {"carriage return alone", "X: a\rContent-Length: 0\r\n\r\n", 400},
      {"zero byte", "X: a" + std::string(1, '\0') + "\r\n\r\n", 400},
      {"two hosts", "Host: other\r\n\r\n", 400},
      {"expectation and no coding", "Expect: 100-continue\r\nTransfer-Encoding: x\r\n\r\n", 501},
      {"expectation over the limit", "Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n", 413},
  };
  const std::string smuggled = "GET /hello HTTP/1.1\r\nHost: t\r\n\r\n";
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    TestClient client(port());
    client.Send("POST /echo HTTP/1.1\r\nHost: t\r\n" + c.head + smuggled);
    const TestClient::Response response = client.ReadResponse();
    EXPECT_EQ(response.status, c.status) << response.body;
    EXPECT_EQ(response.Header("Connection"), "close");
    EXPECT_TRUE(client.ReadsEnd());
  }
  TestClient old(port());
  old.Send("POST /echo HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled);
  EXPECT_EQ(old.ReadResponse().status, 400);
  EXPECT_TRUE(old.ReadsEnd());
}

TEST_F(HttpServerTest, ServesWhatFollowsAnErrorOfAHandler) {
  Start();
  TestClient client(port());
  client.Request("POST", "/nothing", "GET /hello HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(client.ReadResponse().status, 404);
  client.Request("GET", "/hello");
  EXPECT_EQ(client.ReadResponse().body, "hello");
}

TEST_F(HttpServerTest, TakesNoHeaderFromATrailer) {
  Start();
  TestClient client(port());
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
      "2\r\nok\r\n0\r\nX-Request-ID: forged\r\nConnection: close\r\n\r\n");
  const TestClient::Response response = client.ReadResponse();
  EXPECT_EQ(response.body, "ok");
  EXPECT_NE(response.Header("x-request-id"), "forged");
  EXPECT_EQ(response.Header("Connection"), "");
}

TEST_F(HttpServerTest, BoundsTheLinesOfAChunkedBody) {
  Start({.max_header_bytes = 2000});
  for (const std::string line : {"1;x=", "0\r\nX: "}) {
    TestClient client(port());
    client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" + line);
    client.Send(std::string(40'000, 'x'));
    EXPECT_EQ(client.ReadResponse().status, 431);
    EXPECT_TRUE(client.ReadsEnd());
  }
}

// Requests that nobody will answer lie unread where the server closes: the answer before them must survive.
TEST_F(HttpServerTest, LetsTheClientReadTheLastAnswer) {
  Start();
  TestClient client(port());
  client.Request("POST", "/hold", "", "Connection: close\r\n");
  Exchange exchange = Held();
  client.Send(std::string(1 << 20, 'x'));
  RunOn(exchange, [&] { exchange->Respond({.body = std::string(100'000, 'a')}); });
  client.Send(std::string(1 << 20, 'x'));
  EXPECT_EQ(client.ReadResponse().body.size(), 100'000u);
  EXPECT_TRUE(client.ReadsEnd());
}

TEST_F(HttpServerTest, DoesNotWaitForeverForARequest) {
  Start({.idle_timeout = milliseconds(50), .header_timeout = milliseconds(50), .body_timeout = milliseconds(50)});
  TestClient idle(port());
  EXPECT_TRUE(idle.ReadsEnd());
  TestClient slow_head(port());
  slow_head.Send("GET /hello HTTP/1.1\r\nHo");
  EXPECT_EQ(slow_head.ReadResponse().status, 408);
  TestClient slow_body(port());
  slow_body.Send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(slow_body.ReadResponse().status, 408);
}

}  // namespace
}  // namespace winnow
