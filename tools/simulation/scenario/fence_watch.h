#pragma once
#include <string>

namespace winnow::simulation {

// Watches every frame that a cache rank handles: one of a rank that does not hold the sequence, or of an earlier
// attachment of it, must not change the sequence. Says what the first did that has; empty: none.
const std::string& FenceViolation();

}  // namespace winnow::simulation
