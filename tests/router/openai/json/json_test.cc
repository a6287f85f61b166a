#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "router/openai/json/api_error.h"
#include "router/openai/json/json_document.h"
#include "router/openai/json/json_reader.h"
#include "router/openai/json/json_writer.h"
#include "router/openai/json/utf8_scan.h"

namespace winnow {
namespace {

std::string MessageOf(std::string_view text) {
  return std::string(StdSv(ParseJsonObject(text).status().message()));
}

TEST(JsonDocument, AcceptsObjectsOnly) {
  EXPECT_TRUE(ParseJsonObject(R"({"a": [1, {"b": null}], "ä": "ü"})").ok());
  EXPECT_TRUE(ParseJsonObject(R"({"a": 1, "a": 2})").ok());
  EXPECT_EQ(MessageOf(""), "The request body is empty; a JSON object is needed.");
  EXPECT_EQ(MessageOf("[1]"), "The request body must be a JSON object, not array.");
  for (const char* bad :
       {"{", "{\"a\":}", "{\"a\":1}x", "{\"a\":NaN}", "{\"a\":Infinity}", "{'a':1}", "{\"a\":1,}", "{\"a\":01}", "nul",
        "{\"a\":1e999}", "{\"a\":\"\xff\"}", "{\"a\":\"\xed\xa0\x80\"}", "{\"a\":\"\\ud800\"}", "{\"a\":\"\n\"}"}) {
    EXPECT_EQ(ParseJsonObject(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(JsonDocument, LimitsDepthButNotTextInStrings) {
  const auto nested = [](int depth) { return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}"; };
  EXPECT_TRUE(ParseJsonObject(nested(kMaxJsonDepth - 1)).ok());
  EXPECT_EQ(MessageOf(nested(kMaxJsonDepth)), "The JSON body nests deeper than 64 levels.");
  EXPECT_EQ(MessageOf(nested(1'000'000)), "The JSON body nests deeper than 64 levels.");
  EXPECT_TRUE(ParseJsonObject("{\"a\":\"\\\"" + std::string(1000, '[') + "\"}").ok());
}

TEST(JsonDocument, LimitsTheFieldsOfABody) {
  const auto body = [](size_t fields) {
    std::string text = "{\"x\":{}";
    for (size_t i = 1; i < fields; ++i) text += ",\"" + std::to_string(i) + "\":0";
    return text + "}";
  };
  EXPECT_TRUE(ParseJsonObject(body(kMaxBodyFields)).ok());
  EXPECT_EQ(MessageOf(body(kMaxBodyFields + 1)), "The request body has more than 1024 fields.");
}

TEST(JsonReader, NamesTheFirstWrongField) {
  const Json body = *ParseJsonObject(
      R"({"t": true, "s": "x", "i": 3, "f": 2.5, "n": null, "big": 1e300, "u": 18446744073709551615})");
  JsonReader reader(body, "outer.");
  EXPECT_EQ(reader.Bool("t"), true);
  EXPECT_EQ(reader.String("s"), "x");
  EXPECT_EQ(reader.Int("i", 0, 3), 3);
  EXPECT_EQ(reader.Number("f", 0, 2.5), 2.5);
  EXPECT_EQ(reader.Bool("n"), std::nullopt);
  EXPECT_EQ(reader.Bool("absent"), std::nullopt);
  EXPECT_TRUE(reader.status().ok());
  EXPECT_EQ(reader.Int("f", 0, 3), std::nullopt);
  EXPECT_EQ(reader.Bool("t"), std::nullopt) << "reads after an error give nothing";
  EXPECT_EQ(reader.status().message(), R"("outer.f" must be an integer from 0 to 3, not 2.5.)");
  EXPECT_EQ(ToApiError(reader.status()).param, "outer.f");

  for (const char* field : {"t", "s", "big", "u"}) {
    JsonReader again(body);
    EXPECT_EQ(again.Int(field, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()), std::nullopt);
    EXPECT_FALSE(again.status().ok()) << field;
  }
}

TEST(JsonReader, TakesIntegralNumbersInAnySpelling) {
  for (const char* text : {"5", "5.0", "5e0", "0.5e1"}) EXPECT_EQ(AsInt64(Json::parse(text)), 5) << text;
  EXPECT_EQ(AsInt64(Json::parse("-9223372036854775808")), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(AsInt64(Json::parse("9223372036854775807")), std::numeric_limits<int64_t>::max());
  for (const char* text : {"9223372036854775808", "1e19", "-1e19", "5.5", "\"5\"", "true"}) {
    EXPECT_EQ(AsInt64(Json::parse(text)), std::nullopt) << text;
  }
}

TEST(JsonWriter, WritesWhatAParserReads) {
  JsonWriter json;
  json.BeginObject();
  json.Key("text").String("a\"b\\c\n\r\t\x01\x7f/ä漢😀");
  json.Key("list").BeginArray().Int(-1).Int(uint64_t{18446744073709551615u}).Float(0.1f).Bool(true).Null().EndArray();
  json.Key("empty").BeginObject().EndObject();
  json.Key("none").BeginArray().EndArray();
  json.EndObject();
  const std::string text = json.Take();
  EXPECT_EQ(text,
            "{\"text\":\"a\\\"b\\\\c\\n\\r\\t\\u0001\x7f/ä漢😀\",\"list\":[-1,18446744073709551615,0.1,true,null],"
            "\"empty\":{},\"none\":[]}");
  EXPECT_EQ(Json::parse(text)["text"], "a\"b\\c\n\r\t\x01\x7f/ä漢😀");
}

TEST(JsonWriter, KeepsFloatsFiniteAndExact) {
  const auto number = [](float value) {
    JsonWriter json;
    return json.Float(value).Take();
  };
  EXPECT_EQ(number(-0.34657359f), "-0.3465736");
  for (const float value : {1.0f / 3, 1e-30f, 16777216.0f, -3.4e38f}) EXPECT_EQ(std::stof(number(value)), value);
  EXPECT_EQ(number(std::nanf("")), "null");
  EXPECT_EQ(std::stof(number(-std::numeric_limits<float>::infinity())), -std::numeric_limits<float>::max());
}

TEST(JsonWriter, ReplacesWhatIsNotUtf8) {
  const auto text = [](std::string_view bytes) {
    JsonWriter json;
    return json.String(bytes).Take();
  };
  EXPECT_EQ(text("a\xff"
                 "b"),
            "\"a\xef\xbf\xbd"
            "b\"");
  EXPECT_EQ(text("\xe6\xbc"), "\"\xef\xbf\xbd\xef\xbf\xbd\"");
  EXPECT_EQ(text("\xed\xa0\x80").find('\xed'), std::string::npos) << "a surrogate";
}

TEST(Utf8Scan, KnowsTheEdgesOfTheEncoding) {
  for (const char* good : {"", "a", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xef\xbf\xbf",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xc2", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82"}) {
    EXPECT_FALSE(IsUtf8(bad)) << bad;
  }
}

TEST(ApiError, MapsStatusesToHttp) {
  const struct {
    absl::Status status;
    int http_status;
    const char* code;
    bool retry_after;
  } cases[] = {
      {absl::InvalidArgumentError("x"), 400, "", false},
      {absl::NotFoundError("x"), 404, "not_found", false},
      {absl::ResourceExhaustedError("queue full"), 429, "rate_limit_exceeded", true},
      {absl::UnavailableError("no rank"), 503, "service_unavailable", true},
      {absl::DeadlineExceededError("late"), 504, "timeout", false},
      {absl::InternalError("bug"), 500, "internal_error", false},
  };
  for (const auto& c : cases) {
    const HttpResponse response = ErrorResponse(c.status);
    EXPECT_EQ(response.status, c.http_status);
    EXPECT_EQ(!response.headers.empty(), c.retry_after) << c.status;
    const Json error = Json::parse(response.body)["error"];
    EXPECT_EQ(error["message"], std::string(c.status.message()));
    if (c.code[0] == '\0') {
      EXPECT_TRUE(error["code"].is_null());
    } else {
      EXPECT_EQ(error["code"], c.code);
    }
    EXPECT_TRUE(error["param"].is_null());
  }
}

TEST(ApiError, CarriesFieldAndCode) {
  EXPECT_EQ(
      ErrorJson(ToApiError(InvalidField("top_p", "too \"high\"", "invalid_value"))),
      R"({"error":{"message":"too \"high\"","type":"invalid_request_error","param":"top_p","code":"invalid_value"}})");
}

}  // namespace
}  // namespace winnow
