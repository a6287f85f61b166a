#include "common/tracing/otlp_resource.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

const SpanAttributes kOwn = {{"service.name", std::string("winnow-router")},
                             {"service.namespace", std::string("local")},
                             {"service.instance.id", std::string("router-0")},
                             {"process.pid", int64_t{7}}};

SpanValue ValueOf(const SpanAttributes& attributes, const std::string& key) {
  for (const auto& [each, value] : attributes) {
    if (each == key) return value;
  }
  return std::string("absent");
}

SpanValue Text(const char* text) {
  return std::string(text);
}

TEST(OtlpResource, IsTheProcessesOwnWithoutVariables) {
  EXPECT_EQ(WithEnvironment(kOwn, "", ""), kOwn);
}

TEST(OtlpResource, AttributesAreAddedAndTheServiceIsRenamed) {
  const SpanAttributes all = WithEnvironment(
      kOwn, "chat", " deployment.environment=prod , team=A%2CB%20%C3%BC,service.name=x,service.namespace=eu");
  EXPECT_EQ(ValueOf(all, "service.name"), Text("chat")) << "OTEL_SERVICE_NAME comes before the list";
  EXPECT_EQ(ValueOf(all, "service.namespace"), Text("eu"));
  EXPECT_EQ(ValueOf(all, "deployment.environment"), Text("prod"));
  EXPECT_EQ(ValueOf(all, "team"), Text("A,B \xc3\xbc"));
  EXPECT_EQ(ValueOf(WithEnvironment(kOwn, "", "service.name=x"), "service.name"), Text("x"));
}

TEST(OtlpResource, WhatTellsProcessesApartStays) {
  EXPECT_EQ(WithEnvironment(kOwn, "", "service.instance.id=all,process.pid=1"), kOwn);
}

TEST(OtlpResource, AMalformedListCountsForNothing) {
  for (const char* bad : {"team", "a=1,b", "=x", "a=%zz", "a=%2"})
    EXPECT_EQ(WithEnvironment(kOwn, "", bad), kOwn) << bad;
}

}  // namespace
}  // namespace winnow
