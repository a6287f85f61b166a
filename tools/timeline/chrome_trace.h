#pragma once
#include <span>
#include <string>

#include "winnow/v1/admin.pb.h"

namespace winnow {

// Recorded timelines in the Trace Event Format that chrome://tracing and ui.perfetto.dev read: a process per rank, a
// thread per recorded thread, complete events ("ph": "X") with times in microseconds from the earliest of them.
std::string ChromeTrace(std::span<const v1::StopTimelineResponse> timelines);

}  // namespace winnow
