#pragma once
#include <chrono>
#include <optional>
#include <vector>

namespace winnow {

// How long a silent rank is waited for before it is given up, which moves all answers that it has. A process that ends
// closes its sockets and is lost at once; so who is silent is mostly slow, and comes back. Moving its answers too early
// costs more than it saves: work is done again, on ranks that may be as late, and the answers may soon be moved back.
//
// So the wait is never shorter than a lease, and longer where what was measured says so:
// - twice the longest silence of this rank, of late, that it came back from (one that was given up and came back was
//   waited for too short a time: that silence counts, and the wait doubles);
// - three times what most of the other ranks have shown: then it is the machine, the network or this router that is
//   late;
// - as long as it has taken lately to go on elsewhere: until then waiting has cost less than moving;
// - and as long as it may be while nobody who could take its answers has been heard, either.
struct SilenceEvidence {
  using Duration = std::chrono::steady_clock::duration;
  Duration own{};                // the longest silence of this rank that ended
  std::vector<Duration> others;  // the same of each other rank; or, if that is more, its silence now
  Duration move{};               // from the attempt to go on elsewhere to its first token
  bool has_nowhere_to_go = false;
};

// Between `least`, the lease of a rank that nothing is known of, and `most`.
SilenceEvidence::Duration PatienceWith(SilenceEvidence evidence, SilenceEvidence::Duration least,
                                       SilenceEvidence::Duration most);

// What going on elsewhere takes: a mean in which a new measurement counts for a quarter. Forgotten when nothing has
// been measured for a while. Time is an argument.
class MoveCost {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kForgotten{60};

  void Note(Clock::duration measured, Clock::time_point now);
  Clock::duration At(Clock::time_point now) const;

 private:
  Clock::duration mean_{};
  std::optional<Clock::time_point> last_;
};

}  // namespace winnow
