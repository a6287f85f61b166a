#include "router/page/page_routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "router/http/http_server.h"
#include "router/page/page_files.h"
#include "tests/router/http/test_client.h"

namespace winnow {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string TypeOf(std::string_view path) {
  if (path.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (path.ends_with(".css")) return "text/css; charset=utf-8";
  if (path.ends_with(".svg")) return "image/svg+xml";
  return "text/html; charset=utf-8";
}

class PageRoutesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    AddPageRoutes(&routes_);
    HttpServerOptions options;
    options.port = 0;
    auto server = HttpServer::Start(
        options, [this](std::shared_ptr<HttpExchange> exchange) { routes_.Dispatch(std::move(exchange)); }, {});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  TestClient::Response Get(std::string_view path, std::string_view headers = "", std::string_view method = "GET") {
    TestClient client(server_->port());
    client.Request(method, path, "", headers);
    return client.ReadResponse(/*head_only=*/method == "HEAD" || headers.find("None-Match") != headers.npos);
  }

  RouteTable routes_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(PageRoutesTest, ServesEachFileWithItsTypeAndAStrictPolicy) {
  for (const PageFile& file : PageFiles()) {
    const TestClient::Response response = Get(file.path);
    EXPECT_EQ(response.status, 200) << file.path;
    EXPECT_EQ(response.body, file.body) << file.path;
    EXPECT_EQ(response.Header("content-type"), TypeOf(file.path)) << file.path;
    const std::string policy = response.Header("content-security-policy");
    EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
    EXPECT_THAT(policy, HasSubstr("frame-ancestors 'none'"));
    EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
    EXPECT_EQ(response.Header("x-content-type-options"), "nosniff");
    EXPECT_EQ(response.Header("cache-control"), "no-cache");
  }
}

TEST_F(PageRoutesTest, AnswersHeadWithoutABody) {
  const TestClient::Response response = Get("/", "", "HEAD");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, "");
  EXPECT_NE(response.Header("content-length"), "0");
}

TEST_F(PageRoutesTest, SaysThatWhatABrowserHasIsStillRight) {
  const std::string etag = Get("/").Header("etag");
  ASSERT_FALSE(etag.empty());
  for (const std::string& tags : {etag, "W/" + etag, "\"other\", " + etag, std::string("*")}) {
    const TestClient::Response response = Get("/", "If-None-Match: " + tags + "\r\n");
    EXPECT_EQ(response.status, 304) << tags;
    EXPECT_EQ(response.Header("etag"), etag);
    EXPECT_EQ(response.Header("content-length"), "");
  }
  EXPECT_EQ(Get("/", "Accept: */*\r\n").status, 200);
}

TEST_F(PageRoutesTest, ChangedFilesHaveOtherTags) {
  std::set<std::string_view> tags;
  for (const PageFile& file : PageFiles()) tags.insert(file.etag);
  EXPECT_EQ(tags.size(), PageFiles().size());
}

// What the policy would block, and what was forgotten in CMakeLists.txt, is found here and not by a user.
TEST_F(PageRoutesTest, RefersToFilesThatAreServedAndToNothingElsewhere) {
  const std::regex reference(R"re((?:from |import |src=|href=)['"]([^'"#][^'"]*)['"])re");
  size_t found = 0;
  for (const PageFile& file : PageFiles()) {
    const std::string text(file.body);
    for (std::sregex_iterator it(text.begin(), text.end(), reference), end; it != end; ++it, ++found) {
      const std::string target = (*it)[1];
      EXPECT_EQ(Get(target).status, 200) << file.path << " refers to " << target;
    }
    EXPECT_THAT(text, Not(HasSubstr("https://"))) << file.path;
    EXPECT_THAT(text, Not(HasSubstr("style=\""))) << file.path << ": the policy forbids styles in markup";
    EXPECT_THAT(text, Not(HasSubstr("innerHTML"))) << file.path;
  }
  EXPECT_GT(found, 20u);
}

}  // namespace
}  // namespace winnow
