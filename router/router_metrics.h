#pragma once
#include "common/metrics/family_writer.h"
#include "router/dispatch/dispatcher.h"
#include "router/membership/registry.h"

namespace winnow {

// Samples of a scrape: requests under way, failovers, and the ranks that are there.
void WriteDispatcherMetrics(const DispatcherCounters& counters, FamilyWriter& writer);
void WriteMembershipMetrics(const MembershipSnapshot& snapshot, FamilyWriter& writer);

}  // namespace winnow
