#include "router/http/cors.h"

#include <gtest/gtest.h>

#include "router/http/http_server.h"
#include "router/http/route_table.h"
#include "router/http/sse_writer.h"
#include "tests/router/http/test_client.h"

namespace winnow {
namespace {

class CorsTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> origins) {
    routes_.Add(HttpMethod::kGet, "/hello", [](std::shared_ptr<HttpExchange> exchange) {
      exchange->Respond({.content_type = "text/plain", .body = "hello"});
    });
    routes_.Add(HttpMethod::kPost, "/stream", [](std::shared_ptr<HttpExchange> exchange) {
      SseWriter sse(std::move(exchange));
      sse.Event("1");
      sse.Finish();
    });
    auto server = HttpServer::Start(
        {.port = 0}, WithCors({.origins = std::move(origins)}, [this](std::shared_ptr<HttpExchange> exchange) {
          routes_.Dispatch(std::move(exchange));
        }));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  TestClient::Response Ask(std::string_view method, std::string_view path, std::string_view headers) {
    TestClient client(server_->port());
    client.Request(method, path, "", headers);
    return client.ReadResponse();
  }

  RouteTable routes_;
  std::unique_ptr<HttpServer> server_;
};

constexpr char kAllow[] = "Access-Control-Allow-Origin";

TEST_F(CorsTest, PagesOfNamedOriginsMayReadAnswersAndStreams) {
  Start({"https://a.example", "http://localhost:3000"});
  for (const char* origin : {"https://a.example", "http://localhost:3000"}) {
    const std::string header = std::string("Origin: ") + origin + "\r\n";
    EXPECT_EQ(Ask("GET", "/hello", header).Header(kAllow), origin);
    EXPECT_EQ(Ask("POST", "/stream", header).Header(kAllow), origin);
    EXPECT_EQ(Ask("GET", "/nothing", header).Header(kAllow), origin) << "errors are to be read as well";
  }
  const TestClient::Response other = Ask("GET", "/hello", "Origin: https://b.example\r\n");
  EXPECT_EQ(other.body, "hello");
  EXPECT_EQ(other.Header(kAllow), "");
  EXPECT_EQ(other.Header("Vary"), "Origin");
  EXPECT_EQ(Ask("GET", "/hello", "").Header(kAllow), "");
}

TEST_F(CorsTest, BrowsersAskBeforehand) {
  Start({"https://a.example"});
  const TestClient::Response allowed = Ask("OPTIONS", "/stream",
                                           "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n"
                                           "Access-Control-Request-Headers: authorization, x-stainless-os\r\n");
  EXPECT_EQ(allowed.status, 204);
  EXPECT_EQ(allowed.Header(kAllow), "https://a.example");
  EXPECT_EQ(allowed.Header("Access-Control-Allow-Headers"), "authorization, x-stainless-os");
  EXPECT_NE(allowed.Header("Access-Control-Allow-Methods").find("POST"), std::string::npos);
  const TestClient::Response refused =
      Ask("OPTIONS", "/stream", "Origin: https://b.example\r\nAccess-Control-Request-Method: POST\r\n");
  EXPECT_EQ(refused.Header(kAllow), "");
  EXPECT_EQ(Ask("OPTIONS", "/stream", "").Header("Allow"), "POST, OPTIONS") << "other questions are the routes'";
}

TEST_F(CorsTest, AStarIsEveryOrigin) {
  Start({"*"});
  const TestClient::Response response = Ask("GET", "/hello", "Origin: https://anywhere.example\r\n");
  EXPECT_EQ(response.Header(kAllow), "*");
  EXPECT_EQ(response.Header("Vary"), "");
}

TEST_F(CorsTest, WithoutOriginsNothingChanges) {
  Start({});
  EXPECT_EQ(Ask("GET", "/hello", "Origin: https://a.example\r\n").Header(kAllow), "");
}

}  // namespace
}  // namespace winnow
