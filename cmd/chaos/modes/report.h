#pragma once
#include <string>
#include <vector>

#include "cmd/chaos/modes/trial.h"
#include "common/base/json.h"

namespace winnow::chaos {

// "the same", "lost", ...
const char* NameOf(Verdict verdict);

// Lines for people, with their ends.
std::string TextOf(const StruckFault& fault);
std::string TextOf(const Trial& trial);
std::string SummaryOf(const std::vector<Trial>& trials);

nlohmann::ordered_json JsonOf(const Throughput& throughput);
nlohmann::ordered_json JsonOf(const std::vector<Trial>& trials);

}  // namespace winnow::chaos
