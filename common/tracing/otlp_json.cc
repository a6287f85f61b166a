#include "common/tracing/otlp_json.h"

#include "common/base/json.h"

namespace winnow {
namespace {

using Json = nlohmann::json;

constexpr int kStatusError = 2;
constexpr int kOtlpSampledFlag = 1;

Json ValueJson(const SpanValue& value) {
  struct Visitor {
    Json operator()(const std::string& text) const { return {{"stringValue", text}}; }
    Json operator()(int64_t number) const { return {{"intValue", std::to_string(number)}}; }
    Json operator()(double number) const { return {{"doubleValue", number}}; }
    Json operator()(bool flag) const { return {{"boolValue", flag}}; }
    Json operator()(const std::vector<std::string>& texts) const {
      Json values = Json::array();
      for (const std::string& text : texts) values.push_back({{"stringValue", text}});
      return {{"arrayValue", {{"values", std::move(values)}}}};
    }
  };
  return std::visit(Visitor(), value);
}

Json AttributesJson(const SpanAttributes& attributes) {
  Json list = Json::array();
  for (const auto& [key, value] : attributes) list.push_back({{"key", key}, {"value", ValueJson(value)}});
  return list;
}

Json SpanJson(const TraceSpan& span) {
  Json json = {{"traceId", TraceIdText(span.context)},
               {"spanId", SpanIdText(span.context.span_id)},
               {"flags", span.context.sampled ? kOtlpSampledFlag : 0},
               {"name", span.name},
               {"kind", static_cast<int>(span.kind)},
               {"startTimeUnixNano", std::to_string(span.start_unix_nanos)},
               {"endTimeUnixNano", std::to_string(span.end_unix_nanos)},
               {"attributes", AttributesJson(span.attributes)}};
  if (span.parent_span_id != 0) json["parentSpanId"] = SpanIdText(span.parent_span_id);
  if (!span.context.tracestate.empty()) json["traceState"] = span.context.tracestate;
  for (const SpanEvent& event : span.events) {
    json["events"].push_back({{"name", event.name},
                              {"timeUnixNano", std::to_string(event.unix_nanos)},
                              {"attributes", AttributesJson(event.attributes)}});
  }
  if (span.error) json["status"] = {{"code", kStatusError}, {"message", *span.error}};
  return json;
}

}  // namespace

std::string OtlpJson(const SpanAttributes& resource, std::span<const TraceSpan> spans) {
  Json list = Json::array();
  for (const TraceSpan& span : spans) list.push_back(SpanJson(span));
  const Json scope = {{"scope", {{"name", "winnow"}}}, {"spans", std::move(list)}};
  const Json of_resource = {{"resource", {{"attributes", AttributesJson(resource)}}},
                            {"scopeSpans", Json::array({scope})}};
  const Json request = {{"resourceSpans", Json::array({of_resource})}};
  // What a client has sent may be no UTF-8.
  return request.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace winnow
