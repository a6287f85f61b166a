#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "cache_rank/store/sequence_kv.h"
#include "cache_rank/stream/frame_entries.h"
#include "kernels/kernel_table.h"
#include "transport/transport.h"

namespace winnow {

// Delta frames that are filled together: threads gather the rows of all of them in one loop, and each frame leaves as
// soon as its own are there, so that the peer takes the first one while the others are still gathered. Reused from time
// to time. Data-plane thread.
class DeltaFrames {
 public:
  static constexpr size_t kMost = 16;

  // Of frames that are filled to `frame_bytes` (DeltaFrame).
  explicit DeltaFrames(size_t frame_bytes);

  void Clear() { size_ = 0; }
  size_t size() const { return size_; }
  // An empty frame behind the others, for Take or to be left again. Below kMost.
  DeltaFrame& Next() {
    frames_[size_].frame.Clear();
    return frames_[size_].frame;
  }
  // The one that Next gave goes with the others, in `buffer`, which has room for it.
  void Take(SendBuffer buffer) { frames_[size_++].buffer = std::move(buffer); }
  const DeltaFrame& frame(size_t i) const { return frames_[i].frame; }

  // Fills the frames by the threads of `team`, which may be null, and calls post(i, its buffer) on the calling thread,
  // in order, as long as that returns true. Buffers that were not posted are given back.
  void Send(Executor* team, absl::FunctionRef<bool(size_t i, SendBuffer buffer)> post);

 private:
  struct Filled {
    DeltaFrame frame;
    SendBuffer buffer;
    std::unique_ptr<std::atomic<size_t>> missing;  // parts of rows that have not been gathered
  };
  std::vector<Filled> frames_;  // [kMost], size_ in use
  size_t size_ = 0;
  std::vector<WantedRows> wanted_;  // of all frames
  std::vector<size_t> frame_of_;    // of each of these
};

}  // namespace winnow
