#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace winnow {

// How an attempt at a request was lost, so that it goes on elsewhere.
enum class Loss {
  kRankEnded,     // the process of its inference rank: its connections were closed
  kRankSilent,    // this router gave the rank up, as nothing had come from it for longer than its patience
  kRankLeft,      // the rank said goodbye, or another start of it has its name
  kNotTaken,      // there was no connection to the rank that could take it
  kCacheLate,     // by the rank's word: a cache rank has not answered or sent in time
  kCacheLost,     // by the rank's word: the link to a cache rank, or the rank's own service, is gone
  kTakenOver,     // by the rank's word: another attachment has the sequence
  kSequenceLost,  // by the rank's word: no cache rank has the sequence
  kDamaged,       // by the rank's word: stored rows are not what was written
  kFailed,        // by the rank's word: anything else that another rank might do better
};

inline constexpr std::array<const char*, 10> kLossNames = {"ended",      "silent",     "left",       "not_taken",
                                                           "cache_late", "cache_lost", "taken_over", "sequence_lost",
                                                           "damaged",    "failed"};
using LossCounters = std::array<std::atomic<uint64_t>, kLossNames.size()>;

// Of an attempt that a rank has failed, and that may be repeated.
inline Loss LossOf(absl::StatusCode code, bool sequence_lost) {
  if (sequence_lost) return code == absl::StatusCode::kDataLoss ? Loss::kDamaged : Loss::kSequenceLost;
  switch (code) {
    case absl::StatusCode::kDeadlineExceeded:
      return Loss::kCacheLate;
    case absl::StatusCode::kUnavailable:
      return Loss::kCacheLost;
    case absl::StatusCode::kAborted:
      return Loss::kTakenOver;
    default:
      return Loss::kFailed;
  }
}

// The rank lives, and the sequence is where it was, as far as is known.
inline bool IsWordOfRank(Loss loss) {
  return loss == Loss::kCacheLate || loss == Loss::kCacheLost || loss == Loss::kTakenOver || loss == Loss::kFailed;
}

}  // namespace winnow
