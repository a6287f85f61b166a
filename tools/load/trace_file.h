#pragma once
#include <string>
#include <vector>

#include "tools/load/workload.h"

namespace winnow {

// Reads a trace in Mooncake's format: one JSON object per line,
//   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ...]}
// with milliseconds since the start and one id per 512 prompt tokens; equal ids stand for equal blocks whose prefixes
// are equal too. Without hash_ids a prompt shares nothing. Times are divided by `speed`. INVALID_ARGUMENT names file,
// line and what is wrong there.
absl::StatusOr<std::vector<PlannedRequest>> ReadTrace(const std::string& path, double speed, uint32_t max_requests);

inline constexpr uint32_t kTraceBlockTokens = 512;

}  // namespace winnow
