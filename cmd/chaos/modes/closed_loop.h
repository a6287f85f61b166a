#pragma once
#include <functional>

#include "cmd/chaos/load/oracle.h"
#include "cmd/chaos/modes/session.h"

namespace winnow::chaos {

// Clients that ask for one request after the other for as long as `goes_on`, and for the next one some time later when
// one was refused. `on_answer` is called for every answer, by one thread at a time.
void RunClosedLoop(const Session& session, uint32_t clients, const std::function<bool()>& goes_on,
                   const std::function<void(size_t request, const Answer& answer)>& on_answer);

// Counts what answers are like, for modes that ask for many.
struct Tally {
  size_t same = 0, wrong = 0, lost = 0;
  std::string example;  // of one that is not the same

  void Add(const Session& session, size_t request, const Answer& answer);
  std::string Text() const;
  // A failure each for wrong and for lost ones.
  void AddFailures(std::vector<std::string>& failures) const;
};

// Who of the beginning is not there, or is there by another start; empty: nobody.
std::string EndedSince(const Members& before, const Members& now);

// Waits for everything to be as at the beginning; says it, and adds a failure for what is left.
void CheckReturn(const Session& session, std::vector<std::string>& failures);

}  // namespace winnow::chaos
