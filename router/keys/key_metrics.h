#pragma once
#include "common/metrics/family_writer.h"
#include "router/keys/key_ring.h"

namespace winnow {

// By the names of keys; nothing of their secrets.
void WriteKeyMetrics(const KeyRing& ring, FamilyWriter& writer);

}  // namespace winnow
