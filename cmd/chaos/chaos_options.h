#pragma once
#include <chrono>
#include <string>

#include "cmd/chaos/modes/session.h"
#include "cmd/chaos/modes/strikes.h"
#include "common/config/fields.h"

namespace winnow::chaos {

enum class Mode { kFaults, kHeal, kCancel, kOverload, kSoak };

struct ChaosOptions {
  std::string server, metrics;  // of a cluster that runs; empty: one is started
  bool yes = false;
  std::string cluster_log;
  Mode mode = Mode::kFaults;
  std::string faults = "kill-inference,stop";
  int trials = 4;
  int at_once = 1;
  std::string stop_for = "2s,10s";
  std::chrono::microseconds lasts{5'000'000};
  std::string link_rate = "100Mbit";
  std::chrono::microseconds window{10'000'000};
  std::chrono::microseconds deadline{20'000'000};
  std::chrono::microseconds duration{60'000'000};
  uint32_t cancels = 10'000;
  uint32_t streams = 64;
  uint32_t requests = 0;
  std::string prompt_tokens = "1k-16k";
  std::string answer_tokens = "32-128";
  std::string mix = RequestOptions().mix;
  uint32_t first_token_id = RequestOptions().first_token_id;
  uint32_t token_ids = RequestOptions().token_ids;
  std::chrono::microseconds spread{300'000};
  std::chrono::microseconds patience{180'000'000};
  std::chrono::microseconds settle{5'000'000};
  int64_t rss_slack_bytes = Slack().rss_bytes;
  int64_t descriptor_slack = Slack().descriptors;
  int64_t thread_slack = Slack().threads;
  uint64_t seed = 1;
  Control control = Control::kNone;
  std::string api_key;
  std::string json;

  void Declare(Fields& fields);

  bool starts_cluster() const { return server.empty() && metrics.empty(); }
  // INVALID_ARGUMENT names the option.
  absl::StatusOr<RequestOptions> Requests() const;
  absl::StatusOr<FaultPlan> Faults() const;
};

}  // namespace winnow::chaos
