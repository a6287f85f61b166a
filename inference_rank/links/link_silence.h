#pragma once
#include <chrono>
#include <cstdint>
#include <optional>

#include "common/base/recent_worst.h"

namespace winnow {

// Judges whether a link on which nothing comes leads anywhere. What is busy or stopped for a moment is silent as well,
// so the cache rank is asked, over another connection, before its link is given up: one that answers is only busy.
//
// A link is given up, while somebody waits for it and nothing comes, when its cache rank does not answer
// - and a router has had no sign of life from it for a whole lease either, or
// - and it has been silent for kPatience: then it may be this link alone that is cut. Who has been silent for longer
//   lately, and came back, is waited for twice as long as that, up to kLongestPatience.
// So is one whose cache rank answers again, and that stays silent: the connection below it waits, behind a cut, ever
// longer until it sends again, where a new one would be there at once.
class LinkSilence {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kLook{250};           // from one look to the next
  static constexpr std::chrono::milliseconds kBeforeAsking{1000};  // of silence that no router has confirmed
  static constexpr std::chrono::milliseconds kPatience{4000}, kLongestPatience{16'000};
  static constexpr std::chrono::milliseconds kAfterAnswer{750};

  // Whether somebody has waited since the last look, how much has come from the cache rank in all, and whether a router
  // has given it up. True: it is to be asked.
  bool Look(bool awaited, uint64_t num_heard, bool expired, Time now);
  // Whether it answered when it was asked. True: the link is to be given up.
  bool GivesUp(bool answered, Time now);
  // There is another link to the same cache rank, in the place of one that was given up.
  void BeginAnew();

 private:
  Time::duration PatienceAt(Time now) const;

  RecentWorst silence_;  // that was over before the link was given up, or that it was given up for
  uint64_t num_heard_ = 0;
  bool expired_ = false;
  std::optional<Time> silent_since_;    // and awaited
  bool was_unanswered_ = false;         // within this silence
  std::optional<Time> answered_again_;  // after that
};

}  // namespace winnow
