#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tools/engine/measurement.h"
#include "tools/engine/quality_file.h"

namespace winnow {

// One line of the table: what was measured, or why it was not.
struct TableLine {
  DecodeCase of;
  uint32_t context_tokens = 0;
  int num_ranks = 1;
  std::optional<DecodeMeasurement> measured = {};
  std::string why_not = {};
};

// Presets and placements side by side: time of a step and where it goes, tokens per second of each inference rank's GPU
// and of each GPU in all, how near to the floor, and what the same specification costs in answers (of the bench model,
// where a file says it).
std::string DecodeTable(const std::vector<TableLine>& lines, const QualityFile* quality, uint32_t budget);

}  // namespace winnow
