#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/json.h"
#include "tools/timeline/chrome_trace.h"
#include "tools/timeline/timeline_summary.h"

namespace winnow {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

void AddEvent(v1::TimelineThread* thread, const char* span, int layer, uint64_t start_ns, uint32_t duration_ns) {
  v1::TimelineEvent* event = thread->add_events();
  event->set_span(span);
  if (layer >= 0) event->set_layer(layer);
  event->set_start_unix_nanos(start_ns);
  event->set_duration_ns(duration_ns);
  event->set_plan(9);
  event->set_rows(1);
}

// Two steps of an inference rank that waits in layer 1, and the cache rank that it waits for.
std::vector<v1::StopTimelineResponse> TwoRanks() {
  std::vector<v1::StopTimelineResponse> ranks(2);
  ranks[0].mutable_identity()->set_rank("inference-0");
  v1::TimelineThread* engine = ranks[0].add_threads();
  engine->set_name("engine");
  AddEvent(engine, "await rows", 1, 1'000'020'000, 4'000);
  AddEvent(engine, "step", -1, 1'000'000'000, 100'000);
  AddEvent(engine, "await rows", 1, 1'000'220'000, 8'000);
  AddEvent(engine, "step", -1, 1'000'200'000, 100'000);
  ranks[1].mutable_identity()->set_rank("cache-0");
  v1::TimelineThread* data_plane = ranks[1].add_threads();
  data_plane->set_name("data plane");
  AddEvent(data_plane, "select", 1, 1'000'010'500, 10'000);
  return ranks;
}

TEST(ChromeTrace, HasAProcessPerRankAndTimesFromTheFirstEvent) {
  const Json trace = Json::parse(ChromeTrace(TwoRanks()));
  std::vector<std::string> processes;
  const Json* select = nullptr;
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == "process_name") processes.push_back(event["args"]["name"]);
    if (event["name"] == "select 1") select = &event;
  }
  EXPECT_THAT(processes, ::testing::ElementsAre("inference-0", "cache-0"));
  ASSERT_NE(select, nullptr);
  EXPECT_EQ((*select)["ph"], "X");
  EXPECT_DOUBLE_EQ((*select)["ts"].get<double>(), 10.5);
  EXPECT_DOUBLE_EQ((*select)["dur"].get<double>(), 10);
  EXPECT_EQ((*select)["pid"], 2);
  EXPECT_EQ((*select)["args"]["layer"], 1);
  EXPECT_EQ((*select)["args"]["plan"], 9);
}

TEST(SummarizeTimelines, GivesTheMeanPerStepByLayer) {
  const std::string table = SummarizeTimelines(TwoRanks());
  EXPECT_THAT(table, HasSubstr("2 decode steps"));
  // (4 + 8) us of two steps, all of it in layer 1.
  EXPECT_THAT(table, ContainsRegex("inference-0 +await rows +6.0 +0.0 6.0"));
  EXPECT_THAT(table, ContainsRegex("inference-0 +step +100.0"));
  EXPECT_THAT(table, ContainsRegex("cache-0 +select +5.0 +0.0 5.0"));
}

TEST(SummarizeTimelines, SaysWhatWasDropped) {
  std::vector<v1::StopTimelineResponse> ranks = TwoRanks();
  ranks[1].mutable_threads(0)->set_dropped(7);
  EXPECT_THAT(SummarizeTimelines(ranks), HasSubstr("7 events were dropped"));
}

TEST(SummarizeTimelines, SumsUpWhatPromptsTook) {
  std::vector<v1::StopTimelineResponse> ranks = TwoRanks();
  for (int layer = 0; layer < 2; ++layer) {
    AddEvent(ranks[1].mutable_threads(0), "append", layer, 1'000'300'000, 3'000'000);
    ranks[1].mutable_threads(0)->mutable_events()->rbegin()->set_plan(0);
  }
  EXPECT_THAT(SummarizeTimelines(ranks), Not(HasSubstr("append")));  // of no prompt
  AddEvent(ranks[0].mutable_threads(0), "prefill chunk", -1, 1'000'300'000, 20'000'000);
  ranks[0].mutable_threads(0)->mutable_events()->rbegin()->set_plan(0);
  const std::string table = SummarizeTimelines(ranks);
  EXPECT_THAT(table, HasSubstr("2 decode steps"));
  EXPECT_THAT(table, HasSubstr("1 chunks of prompts"));
  EXPECT_THAT(table, ContainsRegex("inference-0 +prefill chunk +20.0"));
  EXPECT_THAT(table, ContainsRegex("cache-0 +append +6.0 +3.0 3.0"));
}

TEST(SummarizeTimelines, IsEmptyWithoutSteps) {
  EXPECT_EQ(SummarizeTimelines({}), "");
}

}  // namespace
}  // namespace winnow
