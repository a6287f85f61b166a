#pragma once
#include "common/discovery/registry_presence.h"
#include "common/metrics/family_writer.h"

namespace winnow {

// Of a process that was given a registry.
void WriteMetrics(const RegistryPresence::State& state, FamilyWriter& writer);

}  // namespace winnow
