#include "router/http/http_message.h"

#include <gtest/gtest.h>

#include "router/http/request_id.h"
#include "router/http/response_head.h"

namespace winnow {
namespace {

TEST(HttpMessage, FindsHeadersWhateverTheirCase) {
  HttpRequest request;
  request.headers = {{"Content-Type", "a"}, {"content-type", "b"}};
  ASSERT_NE(request.FindHeader("CONTENT-type"), nullptr);
  EXPECT_EQ(*request.FindHeader("CONTENT-type"), "a");
  EXPECT_EQ(request.FindHeader("Accept"), nullptr);
}

TEST(HttpMessage, DecodesPercentEscapes) {
  std::string out;
  EXPECT_TRUE(PercentDecode("a%2Fb%20c+d", &out));
  EXPECT_EQ(out, "a/b c+d");
  for (const char* bad : {"%", "%2", "a%zz", "%g0"}) EXPECT_FALSE(PercentDecode(bad, &out)) << bad;
}

TEST(HttpMessage, KnowsItsMethods) {
  for (const char* name : {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
    EXPECT_EQ(MethodName(ParseMethod(name)), name);
  EXPECT_EQ(ParseMethod("get"), HttpMethod::kOther);
}

TEST(ResponseHead, HasFramingHeaders) {
  EXPECT_EQ(FormatResponseHead({.status = 404, .headers = {{"Allow", "GET"}}}, {.content_length = 3}, "id-1"),
            "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 3\r\nx-request-id: "
            "id-1\r\nAllow: GET\r\n\r\n");
  EXPECT_EQ(
      FormatResponseHead({.content_type = "text/event-stream"}, {.chunked = true, .keep_alive = false}, ""),
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
}

TEST(ResponseHead, CannotBeSplitByAHeaderValue) {
  const std::string head = FormatResponseHead({.headers = {{"X", "a\r\nSet-Cookie: b"}}}, {.content_length = 0}, "");
  EXPECT_EQ(head.find("\r\nSet-Cookie"), std::string::npos);
}

TEST(RequestId, IsUnpredictableAndUsable) {
  const std::string id = NewRequestId();
  EXPECT_EQ(id.size(), 32u);
  EXPECT_TRUE(IsUsableRequestId(id));
  EXPECT_NE(id, NewRequestId());
}

TEST(RequestId, RefusesWhatCouldConfuseLogs) {
  for (const char* bad : {"", "a b", "a\"b", "a\x7f", "\xc3\xa4", "a/b"}) EXPECT_FALSE(IsUsableRequestId(bad)) << bad;
  EXPECT_FALSE(IsUsableRequestId(std::string(129, 'a')));
  EXPECT_TRUE(IsUsableRequestId("trace:00-4bf9.2_f"));
}

}  // namespace
}  // namespace winnow
