#include "cmd/role/options/opentelemetry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace winnow {
namespace {

using testing::HasSubstr;

OpenTelemetryDefaults With(const std::map<std::string, std::string>& variables) {
  return OpenTelemetryDefaults::Read([&](const char* name) {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

TEST(OpenTelemetry, NothingIsTracedWithoutVariables) {
  const OpenTelemetryDefaults defaults = With({});
  EXPECT_EQ(defaults.tracing.otlp_endpoint, "");
  EXPECT_EQ(defaults.tracing.sample, 1);
  EXPECT_EQ(defaults.note, "");
}

TEST(OpenTelemetry, EndpointsAreThoseOfOpenTelemetry) {
  EXPECT_EQ(With({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/otlp"}}).tracing.otlp_endpoint, "http://c:4318/otlp");
  EXPECT_EQ(With({{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:9/x/v1/traces"},
                  {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"}})
                .tracing.otlp_endpoint,
            "http://t:9/x");
}

TEST(OpenTelemetry, ItCanBeSwitchedOff) {
  const std::pair<const std::string, std::string> endpoint{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"};
  EXPECT_EQ(With({endpoint, {"OTEL_SDK_DISABLED", "TRUE"}}).tracing.otlp_endpoint, "");
  EXPECT_EQ(With({endpoint, {"OTEL_SDK_DISABLED", "false"}}).tracing.otlp_endpoint, "http://c:4318");
  EXPECT_EQ(With({endpoint, {"OTEL_TRACES_EXPORTER", "none"}}).tracing.otlp_endpoint, "");
  EXPECT_EQ(With({endpoint, {"OTEL_TRACES_EXPORTER", "otlp"}}).tracing.otlp_endpoint, "http://c:4318");
}

TEST(OpenTelemetry, WhatCannotBeSentToIsLeftOutWithAReason) {
  const auto note = [](const std::map<std::string, std::string>& variables) {
    const OpenTelemetryDefaults defaults = With(variables);
    EXPECT_EQ(defaults.tracing.otlp_endpoint, "");
    return defaults.note;
  };
  EXPECT_THAT(note({{"OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:4318"}}), HasSubstr("https is not supported"));
  EXPECT_THAT(note({{"OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318"}}), HasSubstr("OTEL_EXPORTER_OTLP_ENDPOINT"));
  EXPECT_THAT(note({{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:4318"}}), HasSubstr("/v1/traces"));
  EXPECT_THAT(note({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317"}, {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}}),
              HasSubstr("http/json"));
}

TEST(OpenTelemetry, SamplersGiveTheShareOfTracesThatBeginHere) {
  EXPECT_EQ(With({{"OTEL_TRACES_SAMPLER", "always_off"}}).tracing.sample, 0);
  EXPECT_EQ(With({{"OTEL_TRACES_SAMPLER", "parentbased_always_on"}}).tracing.sample, 1);
  EXPECT_EQ(With({{"OTEL_TRACES_SAMPLER", "parentbased_always_off"}}).tracing.sample, 0);
  EXPECT_EQ(With({{"OTEL_TRACES_SAMPLER", "traceidratio"}, {"OTEL_TRACES_SAMPLER_ARG", "0.25"}}).tracing.sample, 0.25);
  EXPECT_EQ(
      With({{"OTEL_TRACES_SAMPLER", "parentbased_traceidratio"}, {"OTEL_TRACES_SAMPLER_ARG", "2"}}).tracing.sample, 1);
  EXPECT_EQ(With({{"OTEL_TRACES_SAMPLER", "jaeger_remote"}}).tracing.sample, 1);
}

}  // namespace
}  // namespace winnow
