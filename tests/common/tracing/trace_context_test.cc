#include "common/tracing/trace_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace winnow {
namespace {

using ::testing::MatchesRegex;

// The example of the W3C's recommendation.
constexpr char kExample[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

std::string Members(int count) {
  std::string state;
  for (int i = 0; i < count; ++i) state += (i == 0 ? "" : ",") + ("key" + std::to_string(i)) + "=1";
  return state;
}

TEST(Traceparent, HasTraceSpanAndFlags) {
  const auto context = ParseTraceparent(kExample);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(TraceIdText(*context), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(SpanIdText(context->span_id), "00f067aa0ba902b7");
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(Traceparent(*context), kExample);
}

TEST(Traceparent, OnlyTheLowestFlagIsKnown) {
  EXPECT_FALSE(ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")->sampled);
  const auto all = ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff");
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(Traceparent(*all), kExample);
  EXPECT_FALSE(ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fe")->sampled);
}

TEST(Traceparent, OfALaterVersionMayHaveMoreFields) {
  EXPECT_TRUE(ParseTraceparent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").has_value());
  EXPECT_TRUE(ParseTraceparent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future").has_value());
  EXPECT_FALSE(ParseTraceparent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.what").has_value());
  // What is sent on is of the version that is known here.
  EXPECT_EQ(Traceparent(*ParseTraceparent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x")), kExample);
}

class MalformedTraceparent : public ::testing::TestWithParam<const char*> {};

TEST_P(MalformedTraceparent, IsNone) {
  EXPECT_FALSE(ParseTraceparent(GetParam()).has_value()) << GetParam();
}

// After the cases of the W3C's own suite.
INSTANTIATE_TEST_SUITE_P(Headers, MalformedTraceparent,
                         ::testing::Values("",                                                         // nothing
                                           "00-00000000000000000000000000000000-00f067aa0ba902b7-01",  // trace of zeros
                                           "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",  // span of zeros
                                           "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",  // upper case
                                           "00-4bf92f3577b34da6a3ce929d0e0e4736-00F067AA0BA902B7-01",  //
                                           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0A",  //
                                           "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",  // version 255
                                           ".0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",  // no digits
                                           "00-.bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",  //
                                           "00-4bf92f3577b34da6a3ce929d0e0e4736-.0f067aa0ba902b7-01",  //
                                           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-.0",  //
                                           "0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",   // too short
                                           "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",   //
                                           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b-01",   //
                                           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",   //
                                           "00-4bf92f3577b34da6a3ce929d0e0e47361-00f067aa0ba902b7-01",    // too long
                                           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",    //
                                           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-ab",  // version 00
                                           "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01"));   // separators

TEST(TraceContext, BlanksAroundHeadersAreNoPartOfThem) {
  EXPECT_TRUE(ParseTraceContext("  00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\t", "").has_value());
  EXPECT_EQ(ParseTraceContext(kExample, " foo=1 ")->tracestate, "foo=1");
}

TEST(TraceContext, MalformedTracestateIsDroppedAlone) {
  EXPECT_EQ(ParseTraceContext(kExample, "foo=1,bar=2")->tracestate, "foo=1,bar=2");
  const auto context = ParseTraceContext(kExample, "foo@=1");
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->tracestate, "");
  EXPECT_FALSE(ParseTraceContext("", "foo=1").has_value());
}

TEST(Tracestate, FollowsTheGrammar) {
  for (const char* good : {"", "foo=1", "foo=1,bar=2", "foo=1 \t , \t bar=2", ",foo=1,", "a-b*c/d_e=1", "t@system=1",
                           "0tenant@system=a b~", "foo=a;b:c"}) {
    EXPECT_TRUE(IsTracestate(good)) << good;
  }
  for (const char* bad : {"foo", "foo=", "=1", "foo=1,foo=2", "FOO=1", "0foo=1", "foo =1", "foo@=1", "@foo=1",
                          "foo@@bar=1", "foo@bar@baz=1", "foo@0bar=1", "foo=1=2", "foo=\x7f", "foo.fighters=1"}) {
    EXPECT_FALSE(IsTracestate(bad)) << bad;
  }
}

TEST(Tracestate, HasLimits) {
  EXPECT_TRUE(IsTracestate(Members(32)));
  EXPECT_FALSE(IsTracestate(Members(33)));
  EXPECT_TRUE(IsTracestate(std::string(256, 'k') + "=1"));
  EXPECT_FALSE(IsTracestate(std::string(257, 'k') + "=1"));
  EXPECT_TRUE(IsTracestate(std::string(241, 't') + "@" + std::string(14, 'v') + "=1"));
  EXPECT_FALSE(IsTracestate(std::string(242, 't') + "@v=1"));
  EXPECT_FALSE(IsTracestate("t@" + std::string(15, 'v') + "=1"));
  EXPECT_TRUE(IsTracestate("foo=" + std::string(256, 'v')));
  EXPECT_FALSE(IsTracestate("foo=" + std::string(257, 'v')));
}

TEST(NewTrace, HasIdsOfItsOwn) {
  const TraceContext one = NewTrace(true), other = NewTrace(true);
  EXPECT_THAT(Traceparent(one), MatchesRegex("00-[0-9a-f]{32}-[0-9a-f]{16}-01"));
  EXPECT_TRUE(ParseTraceparent(Traceparent(one)).has_value());
  EXPECT_NE(TraceIdText(one), TraceIdText(other));
}

TEST(NewTrace, ChildrenStayInIt) {
  TraceContext parent = NewTrace(true);
  parent.tracestate = "foo=1";
  const TraceContext child = parent.Child();
  EXPECT_EQ(TraceIdText(child), TraceIdText(parent));
  EXPECT_NE(child.span_id, parent.span_id);
  EXPECT_EQ(child.tracestate, "foo=1");
  EXPECT_TRUE(child.sampled);
}

TEST(Sample, IsAShareOfTheIds) {
  int taken = 0;
  for (int i = 0; i < 4096; ++i) {
    const TraceContext trace = NewTrace(true);
    EXPECT_TRUE(IsInSample(trace, 1));
    EXPECT_FALSE(IsInSample(trace, 0));
    const bool in_quarter = IsInSample(trace, 0.25);
    taken += in_quarter;
    if (in_quarter) {
      EXPECT_TRUE(IsInSample(trace, 0.5)) << "a larger share holds the smaller one";
    }
  }
  // Six standard deviations of a binomial around 1,024.
  EXPECT_NEAR(taken, 1024, 166);
}

}  // namespace
}  // namespace winnow
