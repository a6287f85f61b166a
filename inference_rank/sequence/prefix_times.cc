#include "inference_rank/sequence/prefix_times.h"

namespace winnow {

void PrefixTimes::ObservePiece(double work, double us) {
  works_ = kPieceMemory * works_ + work;
  us_ = kPieceMemory * us_ + us;
}

void PrefixTimes::ObserveRows(double bytes, double us) {
  if (bytes < kLeastBytes) return;
  const double seen = us / bytes;
  const double share = !has_rows_ ? 1 : seen < us_per_byte_ ? kFasterShare : kSlowerShare;
  us_per_byte_ += share * (seen - us_per_byte_);
  has_rows_ = true;
}

}  // namespace winnow
