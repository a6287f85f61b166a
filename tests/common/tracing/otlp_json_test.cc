#include "common/tracing/otlp_json.h"

#include <gtest/gtest.h>

#include "common/base/json.h"

namespace winnow {
namespace {

using Json = nlohmann::json;

TraceSpan Example() {
  TraceSpan span;
  span.context = *ParseTraceContext("00-5b8efff798038103d269b633813fc60c-eee19b7ec3c1b174-01", "foo=1");
  span.parent_span_id = 0xeee19b7ec3c1b173;
  span.name = "chat demo";
  span.kind = SpanKind::kServer;
  span.start_unix_nanos = 1544712660000000000;
  span.end_unix_nanos = 1544712661000000123;
  return span;
}

TEST(OtlpJson, IsAnExportTraceServiceRequest) {
  TraceSpan span = Example();
  span.Set("gen_ai.operation.name", "chat");
  span.Set("gen_ai.usage.input_tokens", uint64_t{4067});
  span.Set("winnow.captured_mass", SpanValue(0.5));
  span.Set("winnow.attached", SpanValue(true));
  span.Set("gen_ai.response.finish_reasons", SpanValue(std::vector<std::string>{"stop", "length"}));
  span.events.push_back({.name = "failover", .unix_nanos = 1544712660500000000, .attributes = {{"winnow.rank", "a"}}});
  span.error = "UNAVAILABLE";
  // Written by hand after the protocol's mapping: camel-case names, hexadecimal ids, 64-bit numbers as strings,
  // enumerations as numbers.
  const Json expected = Json::parse(R"({
    "resourceSpans": [{
      "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "winnow-router"}}]},
      "scopeSpans": [{
        "scope": {"name": "winnow"},
        "spans": [{
          "traceId": "5b8efff798038103d269b633813fc60c",
          "spanId": "eee19b7ec3c1b174",
          "parentSpanId": "eee19b7ec3c1b173",
          "traceState": "foo=1",
          "flags": 1,
          "name": "chat demo",
          "kind": 2,
          "startTimeUnixNano": "1544712660000000000",
          "endTimeUnixNano": "1544712661000000123",
          "attributes": [
            {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
            {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "4067"}},
            {"key": "winnow.captured_mass", "value": {"doubleValue": 0.5}},
            {"key": "winnow.attached", "value": {"boolValue": true}},
            {"key": "gen_ai.response.finish_reasons",
             "value": {"arrayValue": {"values": [{"stringValue": "stop"}, {"stringValue": "length"}]}}}
          ],
          "events": [{"name": "failover", "timeUnixNano": "1544712660500000000",
                      "attributes": [{"key": "winnow.rank", "value": {"stringValue": "a"}}]}],
          "status": {"code": 2, "message": "UNAVAILABLE"}
        }]
      }]
    }]
  })");
  EXPECT_EQ(Json::parse(OtlpJson({{"service.name", "winnow-router"}}, {&span, 1})), expected);
}

TEST(OtlpJson, LeavesOutWhatASpanHasNot) {
  TraceSpan span = Example();
  span.context.tracestate.clear();
  span.parent_span_id = 0;
  const Json json = Json::parse(OtlpJson({}, {&span, 1}))["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
  for (const char* key : {"parentSpanId", "traceState", "events", "status"}) EXPECT_FALSE(json.contains(key)) << key;
}

TEST(OtlpJson, IdsKeepTheirZeros) {
  TraceSpan span =
      ChildSpan({.trace_id_high = 0, .trace_id_low = 1, .span_id = 2, .sampled = true}, "a", SpanKind::kInternal, 1);
  span.context.span_id = 3;
  const Json json = Json::parse(OtlpJson({}, {&span, 1}))["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
  EXPECT_EQ(json["traceId"], "00000000000000000000000000000001");
  EXPECT_EQ(json["parentSpanId"], "0000000000000002");
  EXPECT_EQ(json["spanId"], "0000000000000003");
}

TEST(OtlpJson, TextThatIsNoUtf8HurtsNobody) {
  TraceSpan span = Example();
  span.Set("text", SpanValue(std::string("a\xff")));
  EXPECT_TRUE(Json::accept(OtlpJson({}, {&span, 1})));
}

}  // namespace
}  // namespace winnow
