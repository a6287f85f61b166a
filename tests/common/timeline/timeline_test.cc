#include "common/timeline/timeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace winnow {
namespace {

TEST(Timeline, KeepsNothingUnlessRecorded) {
  Timeline timeline;
  { const TimelineSpan span(timeline, Span::kSelect, 3, 7, 2); }
  EXPECT_TRUE(timeline.Stop().events.empty());
}

TEST(Timeline, SpanCarriesItsTimesAndLabels) {
  Timeline timeline;
  timeline.Start();
  const auto before = Timeline::Clock::now().time_since_epoch();
  { const TimelineSpan span(timeline, Span::kSelect, 3, 7, 2); }
  const auto after = Timeline::Clock::now().time_since_epoch();
  const Timeline::Recording recording = timeline.Stop();
  ASSERT_EQ(recording.events.size(), 1u);
  const TimelineEvent& event = recording.events[0];
  EXPECT_EQ(event.span, Span::kSelect);
  EXPECT_EQ(event.layer, 3);
  EXPECT_EQ(event.plan, 7u);
  EXPECT_EQ(event.rows, 2u);
  EXPECT_GE(event.start_ns, std::chrono::nanoseconds(before).count());
  EXPECT_LE(event.start_ns + event.duration_ns, std::chrono::nanoseconds(after).count());
}

TEST(Timeline, SpanThatBeganBeforeTheRecordingIsLeftOut) {
  Timeline timeline;
  {
    const TimelineSpan span(timeline, Span::kStep, kNoLayer, 1, 1);
    timeline.Start();
  }
  EXPECT_TRUE(timeline.Stop().events.empty());
}

TEST(Timeline, StartForgetsTheRecordingBefore) {
  Timeline timeline;
  timeline.Start();
  { const TimelineSpan span(timeline, Span::kStep, kNoLayer, 1, 1); }
  timeline.Start();
  EXPECT_TRUE(timeline.Stop().events.empty());
}

TEST(Timeline, CountsWhatItCannotKeep) {
  Timeline timeline;
  timeline.Start();
  const Timeline::Clock::time_point now;
  for (size_t i = 0; i < Timeline::kMaxEvents + 3; ++i) timeline.Add(Span::kStep, kNoLayer, i, 1, now, now);
  const Timeline::Recording recording = timeline.Stop();
  EXPECT_EQ(recording.events.size(), Timeline::kMaxEvents);
  EXPECT_EQ(recording.dropped, 3u);
}

TEST(Timeline, MayBeStartedAndStoppedWhileItIsWritten) {
  Timeline timeline;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    while (!done) const TimelineSpan span(timeline, Span::kSelect, 0, 1, 1);
  });
  for (int i = 0; i < 50; ++i) {
    timeline.Start();
    std::this_thread::yield();
    for (const TimelineEvent& event : timeline.Stop().events) EXPECT_EQ(event.span, Span::kSelect);
  }
  done = true;
  writer.join();
}

}  // namespace
}  // namespace winnow
