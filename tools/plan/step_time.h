#pragma once
#include <string>

#include "tools/plan/roofline.h"

namespace winnow {

// What selecting for one sequence adds to a layer where rows are selected on the GPU that computes, as measured on an
// H200 at 16k to 64k (44 to 54 us, docs/benchmarks.md).
inline constexpr double kInPlaceLayerSeconds = 50e-6;

// Where the rows of a step are found.
enum class SelectedBy : uint8_t {
  kNobody,     // everything is attended
  kInPlace,    // what computes, between its layers
  kCacheGpus,  // beside it
  kCacheHost,  // on CPUs
};

// What computes a step, what selects for it, and what lies between.
struct StepPlacement {
  bool on_gpu = true;
  int devices = 1;           // that share the model
  DeviceRates compute = {};  // of each of them
  SelectedBy selected_by = SelectedBy::kNobody;
  int cache_devices = 1;   // that select for it
  DeviceRates cache = {};  // of each of them
  // A position waits for its own query to be scored, layer by layer; otherwise selections of predicted queries hide
  // behind the layers before.
  bool waits_for_query = true;
  PlanScorer scorer = {};
};

// Seconds of a decode step, and what they are made of.
struct StepTime {
  double floor_s = 0;       // in which the bytes and operations of what computes can be done at all
  double compute_s = 0;     // what is expected of it: gaps between kernels, and the rate that reading reaches
  double all_reduce_s = 0;  // of devices that share the model
  double select_s = 0;      // finding rows
  double transfer_s = 0;    // rows that travel
  double expected_s = 0;    // all of it, with what hides left out
  std::string arithmetic;   // how these came about, a line each
};
StepTime EstimateStep(const PlanModel& model, const StepPlacement& placement, const PlanWorkload& load, double batch);

// Seconds of a prompt's first token.
struct FirstToken {
  double alone_s = 0;
  double last_of_batch_s = 0;  // where `batch` of them come at once: prompts are computed one after the other
  std::string arithmetic;
};
// `cached_tokens` of the context come from the prefix cache, and their rows are sent back. Chunks of `chunk_tokens`
// read all weights each.
FirstToken EstimateFirstToken(const PlanModel& model, const StepPlacement& placement, const PlanWorkload& load,
                              double cached_tokens, double chunk_tokens, double batch);

}  // namespace winnow
