#pragma once
#include "absl/status/status.h"
#include "tools/engine/decode_floor.h"
#include "tools/engine/measurement.h"

namespace winnow {

// Where a step's time goes, of rank 0. Afterwards the batch's rows and selections do not fit together any longer: this
// comes last.

// The shares of a DecodeMeasurement, from three graphs.
absl::Status MeasureShares(DecodeBatch& batch, DecodeMeasurement& result);

struct PartFloors {
  const DeviceWeights& weights;
  StepBytes bytes;
  double read_rate = 0;  // bytes per microsecond
};
// Every part of the step alone and left out, or, of a batch with a cache rank, every part of what that does.
absl::Status MeasureParts(DecodeBatch& batch, const PartFloors& floors, DecodeMeasurement& result);

}  // namespace winnow
