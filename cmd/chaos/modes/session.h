#pragma once
#include <chrono>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "cmd/chaos/cluster/baseline.h"
#include "cmd/chaos/cluster/cluster.h"
#include "cmd/chaos/load/requests.h"
#include "cmd/chaos/load/stream.h"
#include "common/base/json.h"

namespace winnow::chaos {

// The control that a run must not pass: what is checked is spoilt on purpose.
enum class Control { kNone, kWrongToken, kLostRequest, kNoFault };

// How long a cluster may take to be whole again once faults are over.
inline constexpr std::chrono::milliseconds kWholeLimit{90'000};

// What all modes need: the cluster, the load with its right answers, and where the report goes.
struct Session {
  const Cluster* cluster = nullptr;
  std::vector<Request> requests;
  std::vector<Answer> truths;  // of the requests, each alone
  Baseline baseline;
  Slack slack;
  ReturnLimits limits;
  StreamOptions stream;
  std::chrono::milliseconds spread{300};
  uint64_t seed = 1;
  Control control = Control::kNone;
  std::stop_token stop;
  std::function<void(std::string_view)> say;  // a line of the report, as soon as it is known
};

// What a mode found: no failures is a run that passed.
struct Findings {
  std::vector<std::string> failures;
  nlohmann::ordered_json json;
};

// Asks each request alone and keeps its answer as the right one. An error names the request that is not answered.
absl::Status AskAlone(Session& session, const std::function<void(size_t done)>& progress);

// Spoils answers as the control says.
void Spoil(Control control, std::vector<Answer>& answers);

}  // namespace winnow::chaos
