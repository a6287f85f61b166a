#pragma once
#include <cstddef>
#include <cstdint>

namespace winnow {

// The sender's side of flow control: what it may still send before the peer has consumed more. Counts payload bytes,
// and frames so that frames without payload are bounded too. All totals are of the channel's whole life, so a lost or
// repeated report does no harm.
class SendWindow {
 public:
  // 64 Ki small frames cost the receiver about 30 MiB: far above what any exchange needs, low enough to bound memory.
  static constexpr uint64_t kMaxFrames = 65536;

  explicit SendWindow(size_t window_bytes) : window_bytes_(window_bytes) {}

  // False when the window has no room. A payload larger than the window passes when nothing else is under way.
  bool Reserve(size_t bytes) {
    const uint64_t under_way = reserved_bytes_ + sent_bytes_ - consumed_bytes_;
    const uint64_t frames = reserved_frames_ + sent_frames_ - consumed_frames_;
    const bool fits = frames == 0 || (under_way + bytes <= window_bytes_ && frames < kMaxFrames);
    starved_ |= !fits;
    if (!fits) return false;
    reserved_bytes_ += bytes;
    ++reserved_frames_;
    return true;
  }
  // The same for frames that may be dropped: only within the first half of the window, and a refusal is not waited for.
  bool ReserveSpare(size_t bytes) {
    const uint64_t under_way = reserved_bytes_ + sent_bytes_ - consumed_bytes_;
    const uint64_t frames = reserved_frames_ + sent_frames_ - consumed_frames_;
    if (under_way + bytes > window_bytes_ / 2 || frames >= kMaxFrames / 2) return false;
    reserved_bytes_ += bytes;
    ++reserved_frames_;
    return true;
  }
  // The same for frames that must arrive: a refusal is waited for, and one passes when nothing else is under way.
  bool ReserveBulk(size_t bytes) {
    const bool fits = reserved_frames_ + sent_frames_ == consumed_frames_ ? Reserve(bytes) : ReserveSpare(bytes);
    starved_ |= !fits;
    return fits;
  }
  void Unreserve(size_t bytes) {
    reserved_bytes_ -= bytes;
    --reserved_frames_;
  }
  void Sent(size_t bytes) {
    Unreserve(bytes);
    sent_bytes_ += bytes;
    ++sent_frames_;
  }
  // The peer's totals. False when they go back or name more than was sent: a broken peer.
  bool SetConsumed(uint64_t bytes, uint64_t frames) {
    if (bytes < consumed_bytes_ || bytes > sent_bytes_ || frames < consumed_frames_ || frames > sent_frames_)
      return false;
    consumed_bytes_ = bytes;
    consumed_frames_ = frames;
    return true;
  }

  // True once after a refused Reserve: the owner waits for room.
  bool TakeStarved() {
    const bool starved = starved_;
    starved_ = false;
    return starved;
  }
  uint64_t sent_bytes() const { return sent_bytes_; }
  uint64_t sent_frames() const { return sent_frames_; }

 private:
  const uint64_t window_bytes_;
  uint64_t reserved_bytes_ = 0;  // handed out by Allocate, not posted yet
  uint64_t reserved_frames_ = 0;
  uint64_t sent_bytes_ = 0;
  uint64_t sent_frames_ = 0;
  uint64_t consumed_bytes_ = 0;
  uint64_t consumed_frames_ = 0;
  bool starved_ = false;
};

}  // namespace winnow
