#pragma once
#include <cstddef>
#include <string>

#include "tools/engine/decode_batch.h"

namespace winnow {

// Rates that nothing of a step can beat, in bytes per microsecond.
struct EngineRates {
  double read = 0;          // HBM, by a plain kernel in the same run
  double nvlink = 365'000;  // pushes between two H200 of one host
  double pcie = 51'000;     // reads of pinned host memory by kernels
};

// What one rank's step moves.
struct StepBytes {
  size_t weights = 0, attended = 0, scored = 0;  // read from HBM
  size_t experts = 0;                            // of the weights: the experts that rows were routed to
  size_t pushed = 0;                             // over a link
  // The longest of what a step cannot avoid: `floor_of` says which.
  double FloorUs(KvPlacement placement, const EngineRates& rates, std::string* floor_of) const;
};

// Of the rows that attention reads of selections like these, of all layers: what several query heads of a kv head
// select counts once.
size_t AttendedBytes(const EngineSetting& setting, const DecodeCase& of, const SelectedLists* selected);
// Keys, their copies and bounds that a step scores, in the mean over the positions that share a selection.
size_t ScoredBytes(const EngineSetting& setting, const DecodeCase& of, const SelectedLists& selected);

}  // namespace winnow
