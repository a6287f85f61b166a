#include "router/http/http_server.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "router/http/route_table.h"
#include "router/http/sse_writer.h"
#include "tests/router/http/test_client.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;
using Exchange = std::shared_ptr<HttpExchange>;

// A server whose routes answer at once ("/hello", "/echo"), or hand their exchange to the test ("/hold").
class HttpServerTest : public ::testing::Test {
 protected:
  void Start(HttpServerOptions options = {}) {
    options.port = 0;
    routes_.Add(HttpMethod::kGet, "/hello",
                [](Exchange exchange) { exchange->Respond({.content_type = "text/plain", .body = "hello"}); });
    routes_.Add(HttpMethod::kPost, "/echo", [](Exchange exchange) {
      exchange->Respond({.content_type = "text/plain", .body = exchange->request().body});
    });
    routes_.Add(HttpMethod::kGet, "/tail/*", [](Exchange exchange) {
      exchange->Respond({.content_type = "text/plain", .body = PathTail(exchange->request(), "/tail/")});
    });
    routes_.Add(HttpMethod::kPost, "/hold", [this](Exchange exchange) {
      exchange->OnClose([this](CloseReason reason) {
        std::lock_guard lock(mutex_);
        closed_.push_back(reason);
        changed_.notify_all();
      });
      std::lock_guard lock(mutex_);
      held_.push_back(std::move(exchange));
      changed_.notify_all();
    });
    HttpHooks hooks;
    hooks.on_request = [this](std::string_view route, std::string_view method, int status, double) {
      std::lock_guard lock(mutex_);
      reported_.push_back(absl::StrCat(AbslSv(method), " ", AbslSv(route), " ", status));
      changed_.notify_all();
    };
    auto server = HttpServer::Start(
        options, [this](Exchange exchange) { routes_.Dispatch(std::move(exchange)); }, hooks);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  void TearDown() override {
    server_.reset();
    held_.clear();
  }

  uint16_t port() const { return server_->port(); }

  // The nth exchange that "/hold" was asked for.
  Exchange Held(size_t n = 0) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_.size() > n; });
    return held_[n];
  }
  CloseReason WaitForClose() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !closed_.empty(); });
    return closed_.front();
  }
  std::vector<std::string> Reported(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reported_.size() >= count; });
    return reported_;
  }
  // Runs on the connection's thread and waits for it.
  static void RunOn(const Exchange& exchange, std::function<void()> task) {
    std::promise<void> done;
    exchange->Post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }

  RouteTable routes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Exchange> held_;
  std::vector<CloseReason> closed_;
  std::vector<std::string> reported_;
  std::unique_ptr<HttpServer> server_;
};

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

TEST_F(HttpServerTest, StreamsChunksAsTheyAreWritten) {
  Start();
  TestClient client(port());
  client.Request("POST", "/hold");
  Exchange exchange = Held();
  SseWriter sse(exchange);
  RunOn(exchange, [&] { sse.Event("one"); });
  const std::string head = client.ReadHead();
  EXPECT_NE(head.find("Content-Type: text/event-stream"), std::string::npos);
  EXPECT_EQ(client.ReadChunk(), "data: one\n\n");
  RunOn(exchange, [&] {
    sse.Event("two");
    sse.Event("three");
    sse.Finish();
  });
  EXPECT_EQ(client.ReadEvent(), "two");
  EXPECT_EQ(client.ReadEvent(), "three");
  EXPECT_EQ(client.ReadEvent(), std::nullopt);
  EXPECT_EQ(WaitForClose(), CloseReason::kCompleted);
}

TEST_F(HttpServerTest, StreamsToHttp10UntilItCloses) {
  Start();
  TestClient client(port());
  client.Send("POST /hold HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  Exchange exchange = Held();
  RunOn(exchange, [&] {
    exchange->StartStream({});
    exchange->Write("all");
    exchange->Finish();
  });
  const TestClient::Response response = client.ReadResponse();
  EXPECT_EQ(response.Header("Transfer-Encoding"), "");
  EXPECT_EQ(response.body, "all");
}

TEST_F(HttpServerTest, NoticesADisconnectWhileNothingIsWritten) {
  for (const bool reset : {false, true}) {
    SetUp();
    Start();
    {
      TestClient client(port());
      client.Request("POST", "/hold");
      Held();
      if (reset) client.Reset();
    }
    EXPECT_EQ(WaitForClose(), CloseReason::kDisconnected);
    EXPECT_EQ(Reported(1).front(), "POST /hold 499");
    server_.reset();
    routes_ = RouteTable();
    held_.clear();
    closed_.clear();
    reported_.clear();
  }
}

TEST_F(HttpServerTest, AnswersAClientThatHasShutItsSendingSide) {
  Start();
  TestClient client(port());
  client.Request("GET", "/hello");
  client.ShutdownSend();
  EXPECT_EQ(client.ReadResponse().body, "hello");
  EXPECT_TRUE(client.ReadsEnd());
}

TEST_F(HttpServerTest, CancelsAStreamWhoseReaderLagsBehind) {
  Start({.max_stream_buffer_bytes = 100'000});
  TestClient client(port(), /*receive_buffer_bytes=*/4096);
  client.Request("POST", "/hold");
  Exchange exchange = Held();
  RunOn(exchange, [&] { exchange->StartStream({}); });
  // The kernel's buffers take some megabytes before anything piles up here.
  bool open = true;
  size_t written = 0;
  while (open && written < (1u << 30)) {
    RunOn(exchange, [&] { open = exchange->Write(std::string(10'000, 'x')); });
    written += 10'000;
  }
  EXPECT_FALSE(open);
  EXPECT_LT(written, 64u << 20);
  EXPECT_EQ(WaitForClose(), CloseReason::kSlowReader);
  RunOn(exchange, [&] { EXPECT_FALSE(exchange->open()); });
}

TEST_F(HttpServerTest, GivesUpOnAWriteThatTakesTooLong) {
  Start({.write_timeout = milliseconds(50)});
  TestClient client(port(), /*receive_buffer_bytes=*/4096);
  client.Request("POST", "/hold");
  Exchange exchange = Held();
  RunOn(exchange, [&] { exchange->Respond({.body = std::string(64 << 20, 'x')}); });
  EXPECT_EQ(WaitForClose(), CloseReason::kSlowReader);
}

TEST_F(HttpServerTest, SaysWhenThePortIsTaken) {
  Start();
  const auto second = HttpServer::Start({.port = port()}, [](Exchange) {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(second.status().message().find(absl::StrCat("127.0.0.1:", port())), std::string::npos) << second.status();
  EXPECT_NE(second.status().message().find("in use"), std::string::npos) << second.status();
}

TEST_F(HttpServerTest, BoundsTheBodiesOfAllConnectionsTogether) {
  Start({.max_bodies_bytes = 250'000});
  const std::string body(200'000, 'x');
  TestClient first(port());
  first.Request("POST", "/hold", body);
  const Exchange held = Held();
  for (const bool chunked : {false, true}) {
    TestClient client(port());
    if (chunked) {
      client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n30d40\r\n" + body +
                  "\r\n0\r\n\r\n");
    } else {
      client.Request("POST", "/echo", body);
    }
    const TestClient::Response response = client.ReadResponse();
    EXPECT_EQ(response.status, 503) << response.body;
    EXPECT_EQ(response.Header("Retry-After"), "1");
    EXPECT_TRUE(client.ReadsEnd());
  }
  TestClient small(port());
  small.Request("POST", "/echo", "small");
  EXPECT_EQ(small.ReadResponse().body, "small");
  // Room comes back when a handler is done with a body, although its answer is still to come.
  RunOn(held, [&] { held->ReleaseBody(); });
  EXPECT_EQ(held->request().body, "");
  TestClient last(port());
  last.Request("POST", "/echo", body);
  EXPECT_EQ(last.ReadResponse().body.size(), body.size());
}

TEST_F(HttpServerTest, RefusesMoreConnectionsThanAllowed) {
  Start({.max_connections = 1});
  TestClient first(port());
  first.Request("GET", "/hello");
  first.ReadResponse();
  {
    TestClient second(port());
    const TestClient::Response response = second.ReadResponse();
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(response.Header("Retry-After"), "1");
  }
  first.Request("GET", "/hello");
  EXPECT_EQ(first.ReadResponse().status, 200);
}

TEST_F(HttpServerTest, FinishesPendingResponsesBeforeItStops) {
  Start();
  TestClient idle(port());
  idle.Request("GET", "/hello");
  idle.ReadResponse();
  TestClient client(port());
  client.Request("POST", "/hold");
  Exchange exchange = Held();
  std::thread stopper([&] { server_->Stop(std::chrono::minutes(5)); });
  // The idle connection is closed at once, which also tells that stopping has begun.
  EXPECT_TRUE(idle.ReadsEnd());
  exchange->Post([&] { exchange->Respond({.body = "late"}); });
  const TestClient::Response late = client.ReadResponse();
  EXPECT_EQ(late.body, "late");
  EXPECT_EQ(late.Header("Connection"), "close");
  EXPECT_TRUE(client.ReadsEnd());
  stopper.join();
}

TEST_F(HttpServerTest, ClosesWhatIsLeftWhenTheGraceIsOver) {
  Start();
  TestClient client(port());
  client.Request("POST", "/hold");
  Held();
  server_->Stop(milliseconds(1));
  EXPECT_EQ(WaitForClose(), CloseReason::kServerStop);
  EXPECT_TRUE(client.ReadsEnd());
  // Late work of other threads is dropped.
  Held()->Post([] { FAIL(); });
}

}  // namespace
}  // namespace winnow
