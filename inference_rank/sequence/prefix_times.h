#pragma once

namespace winnow {

// How fast things have been lately of which the choice of a way to a cached prefix depends (ChoosePrefixAttention).
// Times in, rates out; no clock. Engine thread.
class PrefixTimes {
 public:
  // A piece of a prompt that was computed here, in units of PrefillWork.
  void ObservePiece(double work, double us);
  // Rows of a prefix came, so long after they were asked for.
  void ObserveRows(double bytes, double us);
  // A prefix was left where it is, so that rows tell nothing new.
  void NoteRemote() { us_per_byte_ *= kForgetting; }

  // 0 before anything was measured.
  double us_per_work() const { return works_ > 0 ? us_ / works_ : 0; }
  double us_per_byte() const { return us_per_byte_; }

 private:
  // Of shared memory and of a fast network: what the first rows show otherwise.
  static constexpr double kAssumedBytesPerUs = 3000;
  // Rows come late when the engine is busy, which says nothing of the link: slower ones count little.
  static constexpr double kFasterShare = 0.5, kSlowerShare = 0.1;
  // A link that was slow once is tried again after some hundred prompts that did without.
  static constexpr double kForgetting = 0.99;
  static constexpr double kLeastBytes = 1 << 20;  // fewer tell of latency rather than of the rate
  static constexpr double kPieceMemory = 0.98;    // of older pieces, with each new one

  double works_ = 0, us_ = 0;  // of pieces
  double us_per_byte_ = 1 / kAssumedBytesPerUs;
  bool has_rows_ = false;
};

}  // namespace winnow
