// What a server holds of all connections together, and how it starts and stops.
#include <gtest/gtest.h>

#include <thread>

#include "tests/router/http/http_server_fixture.h"
#include "tests/router/http/test_client.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;

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
