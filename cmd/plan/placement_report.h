#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cmd/plan/cluster_memory.h"
#include "cmd/plan/planned_machine.h"
#include "cmd/up/up_options.h"
#include "common/base/status.h"
#include "tools/plan/step_time.h"

namespace winnow {

// What a plan is asked about.
struct PlannedLoad {
  uint32_t context_tokens = 32768;  // of each sequence, prompt and answer
  uint32_t batch = 0;               // sequences at once; 0: as many as fit
  uint32_t cached_tokens = 0;       // of a prompt, that come from the prefix cache
  double overlap = 0.75;            // share of a selection that is resident already
};

// A way to serve, with what it holds and how fast it is expected to be.
struct PlacementReport {
  std::string name;
  UpOptions options;
  ClusterMemory memory = {};
  StepPlacement placement = {};
  double weight_bytes = 0;  // of each device
  double batch = 0;         // that times are of
  StepTime step = {};
  FirstToken first = {};
  int gpus = 0;                // of all ranks
  double tokens_per_s = 0;     // of all sequences
  uint64_t kv_host_bytes = 0;  // that `batch` sequences take on the cache ranks' hosts
  std::string verdict = {};    // "does not fit: ...", "only 20 fit", ""

  // Not so where it attends to other rows than were asked for: it is there to compare with.
  bool may_be_recommended = true;

  bool fits() const { return memory.fits() && memory.sequences > 0; }
  // Per GPU, or of the CPUs.
  double tokens_per_s_per_device() const { return tokens_per_s / (gpus > 0 ? gpus : 1); }
};

// The machine for these options: GPUs that are only assumed are as many as the options name, and their host has as much
// memory as it takes unless that was given.
MemoryThere MemoryFor(const UpOptions& options, const PlannedMachine& machine);

absl::StatusOr<PlacementReport> ReportPlacement(const std::string& name, const UpOptions& options,
                                                const PlannedMachine& machine, const PlannedLoad& load);

// The placements to choose from for a model: `base` has what they share. Those that the model cannot have are left out,
// and `left_out` says why.
std::vector<PlacementReport> ReportPlacements(const UpOptions& base, const PlannedMachine& machine,
                                              const PlannedLoad& load, int most_cache_gpus,
                                              std::vector<std::string>* left_out);

// That with the most tokens per GPU; on a machine without GPUs, unless one was named, that of its CPUs. Null: none
// fits.
const PlacementReport* Recommend(const std::vector<PlacementReport>& reports, const PlannedMachine& machine,
                                 bool gpu_was_named);

// The options of `winnow up` that differ from the defaults: "--model=... --device=cuda:0".
std::string UpCommandLine(const PlacementReport& report);

}  // namespace winnow
