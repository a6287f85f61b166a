// Answers that are written bit by bit, and clients that lag behind them or go away.
#include <gtest/gtest.h>

#include "router/http/sse_writer.h"
#include "tests/router/http/http_server_fixture.h"
#include "tests/router/http/test_client.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;

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

}  // namespace
}  // namespace winnow
