#pragma once
#include "common/base/status.h"
#include "inference_rank/metrics.h"
#include "inference_rank/sequence/sequence.h"
#include "inference_rank/step/frame_writer.h"
#include "transport/transport.h"

namespace winnow {

// Sends what a sequence of a hybrid model keeps in the place of rows to its first cache rank, as of all positions below
// Sequence::next_position (wire::FrameType::kState): from there whoever takes the sequence over goes on. Waits while
// the link's window is used up. Engine thread.
class StateSender {
 public:
  StateSender(Transport& transport, InferenceRankMetrics& metrics, const DataPlaneWaits& waits)
      : transport_(transport), metrics_(metrics), waits_(waits) {}

  // Nothing where the cache rank was sent it before, or where the sequence keeps no state. A failure is the sequence's.
  void Send(Sequence& sequence);

 private:
  absl::Status SendPieces(const Sequence& sequence);

  Transport& transport_;
  InferenceRankMetrics& metrics_;
  const DataPlaneWaits waits_;
};

}  // namespace winnow
