#include "cmd/role/registry_metrics.h"

namespace winnow {

void WriteMetrics(const RegistryPresence::State& state, FamilyWriter& writer) {
  writer.Gauge("winnow_registry_connected", "1 while the process is published in the registry and hears of changes.",
               state.connected ? 1 : 0);
  writer.Gauge("winnow_registry_away_seconds", "How long the registry has been away; 0 while it is there.",
               state.away_seconds);
  writer.Gauge("winnow_registry_routers", "Routers in the registry, as known last.",
               static_cast<double>(state.routers.size()));
  writer.Counter("winnow_registry_lost_leases_total",
                 "Leases in the registry that ended although the process goes on: it was stopped or cut off.",
                 static_cast<double>(state.lost_leases));
}

}  // namespace winnow
