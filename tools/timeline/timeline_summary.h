#pragma once
#include <span>
#include <string>

#include "winnow/v1/admin.pb.h"

namespace winnow {

// Mean microseconds per decode step of every kind of span, by layer and in sum, for each rank: in the line "await rows"
// of an inference rank stands what its selection does not hide behind compute. Steps are counted over all inference
// ranks. Below it, where prompts were computed meanwhile, the milliseconds that they took in all: "publish" lies within
// "prefill chunk", and "await room" within "publish". Empty when neither was recorded.
std::string SummarizeTimelines(std::span<const v1::StopTimelineResponse> timelines);

}  // namespace winnow
