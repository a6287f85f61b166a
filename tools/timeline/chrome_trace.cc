#include "tools/timeline/chrome_trace.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/json.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

uint64_t EarliestNanos(std::span<const v1::StopTimelineResponse> timelines) {
  uint64_t earliest = std::numeric_limits<uint64_t>::max();
  for (const v1::StopTimelineResponse& rank : timelines) {
    for (const v1::TimelineThread& thread : rank.threads()) {
      for (const v1::TimelineEvent& event : thread.events()) {
        earliest = std::min<uint64_t>(earliest, event.start_unix_nanos());
      }
    }
  }
  return earliest;
}

Json Metadata(const char* kind, int pid, int tid, const std::string& name) {
  return {{"name", kind}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}};
}

}  // namespace

std::string ChromeTrace(std::span<const v1::StopTimelineResponse> timelines) {
  const uint64_t zero = EarliestNanos(timelines);
  Json events = Json::array();
  int pid = 0;
  for (const v1::StopTimelineResponse& rank : timelines) {
    ++pid;
    events.push_back(Metadata("process_name", pid, 0, rank.identity().rank()));
    int tid = 0;
    for (const v1::TimelineThread& thread : rank.threads()) {
      ++tid;
      events.push_back(Metadata("thread_name", pid, tid, thread.name()));
      for (const v1::TimelineEvent& event : thread.events()) {
        Json args = {{"plan", event.plan()}, {"rows", event.rows()}};
        std::string name = event.span();
        if (event.has_layer()) {
          args["layer"] = event.layer();
          absl::StrAppend(&name, " ", event.layer());
        }
        events.push_back({{"name", std::move(name)},
                          {"cat", event.span()},
                          {"ph", "X"},
                          {"ts", static_cast<double>(event.start_unix_nanos() - zero) / 1000},
                          {"dur", event.duration_ns() / 1000.0},
                          {"pid", pid},
                          {"tid", tid},
                          {"args", std::move(args)}});
      }
    }
  }
  return Json{{"displayTimeUnit", "ns"}, {"traceEvents", std::move(events)}}.dump() + "\n";
}

}  // namespace winnow
