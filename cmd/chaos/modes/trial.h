#pragma once
#include <map>
#include <string>
#include <vector>

#include "cmd/chaos/load/oracle.h"
#include "cmd/chaos/modes/session.h"
#include "cmd/chaos/modes/strikes.h"
#include "cmd/chaos/modes/throughput.h"
#include "tools/load/summary.h"

namespace winnow::chaos {

// All streams at once, with faults or, to compare with, with none.
struct Trial {
  int number = 0;
  std::vector<StruckFault> faults = {};
  std::map<Verdict, int> verdicts = {};
  std::vector<std::string> examples = {};  // of answers that are not as they should be
  int refused = 0, resumed = 0, moved = 0;
  Distribution stall_s = {};        // longest gap of each stream that was under way, from the first fault on
  Distribution first_token_s = {};  // of all
  double seconds = 0;               // of the load
  bool under_way = false;           // it was, when the first fault struck
  Throughput throughput = {};       // from its first token to its last, around the faults
  Growth growth = {};
  double prompt_tokens_due = 0;  // that an undisturbed cluster computes
  std::string missing = {};      // who did not come back
  Return back = {};
  std::vector<std::string> failures = {};
};

// Runs the undisturbed trial, behind which the cluster at rest is what all others must come back to, and the others,
// and says each as it ends.
Findings RunTrials(Session& session, const FaultPlan& plan);

}  // namespace winnow::chaos
