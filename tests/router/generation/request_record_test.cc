#include "router/generation/request_record.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

TEST(RequestRecord, IsOneLineOfWords) {
  const RequestRecord record{.request_id = "abc-1",
                             .prompt_tokens = 4000,
                             .cached_prompt_tokens = 3968,
                             .completion_tokens = 64,
                             .outputs = 2,
                             .first_token = std::chrono::milliseconds(125),
                             .duration = std::chrono::milliseconds(1500),
                             .ended = "length",
                             .ranks = {"inference-0", "cache-1"}};
  EXPECT_EQ(
      LogLine(record),
      "request id=abc-1 prompt_tokens=4000 cached_tokens=3968 completion_tokens=64 outputs=2 first_token_s=0.1250 "
      "duration_s=1.5000 ended=length ranks=inference-0,cache-1");
}

TEST(RequestRecord, OfARefusedRequestHasNoTimesOfTokensAndNoRanks) {
  const RequestRecord record{.request_id = "x", .prompt_tokens = 7, .ended = "RESOURCE_EXHAUSTED"};
  EXPECT_EQ(
      LogLine(record),
      "request id=x prompt_tokens=7 cached_tokens=0 completion_tokens=0 duration_s=0.0000 ended=RESOURCE_EXHAUSTED");
}

TEST(RequestRecord, WhatAClientHasChosenCannotForgeALine) {
  const RequestRecord record{.request_id = "a b\n2026 I router ended=stop\xff", .ended = "stop"};
  const std::string line = LogLine(record);
  EXPECT_EQ(line.rfind("request id=\"a b\\n2026 I router ended=stop\\xff\" prompt_tokens=", 0), 0u) << line;
}

}  // namespace
}  // namespace winnow
