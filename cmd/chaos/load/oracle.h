#pragma once
#include <string>
#include <vector>

#include "cmd/chaos/load/stream.h"

namespace winnow::chaos {

enum class Verdict {
  kSame,        // the bytes and the ids of the request alone
  kToldOther,   // others, and `not_identical` says so
  kOther,       // others
  kBrokenRule,  // an end too many, a repeated event ...
  kLost,        // accepted, and not answered to the end
};

struct Judgement {
  Verdict verdict = Verdict::kSame;
  std::string why;
};

// Compares an answer with that of the same request alone. `truth` must be complete.
Judgement Judge(const Answer& truth, const Answer& answer);

}  // namespace winnow::chaos
