#include "cache_rank/stream/delta_frames.h"

namespace winnow {

DeltaFrames::DeltaFrames(size_t frame_bytes) {
  frames_.reserve(kMost);
  for (size_t i = 0; i < kMost; ++i) {
    frames_.push_back({DeltaFrame(frame_bytes), SendBuffer(), std::make_unique<std::atomic<size_t>>(0)});
  }
}

void DeltaFrames::Send(Executor* team, absl::FunctionRef<bool(size_t i, SendBuffer buffer)> post) {
  wanted_.clear();
  frame_of_.clear();
  for (size_t i = 0; i < size_; ++i) {
    size_t parts = 0;
    for (const WantedRows& rows : frames_[i].frame.Write(frames_[i].buffer.payload().data())) {
      wanted_.push_back(rows);
      frame_of_.push_back(i);
      parts += rows.parts();
    }
    frames_[i].missing->store(parts, std::memory_order_relaxed);
  }
  size_t next = 0;
  bool goes_on = true;
  const auto post_complete = [&] {
    for (; goes_on && next < size_ && frames_[next].missing->load(std::memory_order_acquire) == 0; ++next) {
      Filled& filled = frames_[next];
      filled.buffer.set_checksum(filled.frame.Checksum(filled.buffer.payload().data()));
      goes_on = post(next, std::move(filled.buffer));
    }
  };
  SequenceKv::GatherRows(wanted_, team, [&](size_t list, size_t parts, int worker) {
    frames_[frame_of_[list]].missing->fetch_sub(parts, std::memory_order_acq_rel);
    if (worker == 0) post_complete();
  });
  post_complete();
  for (Filled& filled : std::span(frames_).first(size_)) filled.buffer = SendBuffer();
}

}  // namespace winnow
