#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace winnow::serving {

// What a serving system does of SparseServe's ladder (its Figure 13).
struct ServingSystem {
  std::string name;
  bool sparse = false;           // attends to `budget_rows` selected rows instead of everything
  bool offloads = false;         // KV lies in host memory, GPU memory holds copies of what was read last
  bool gathers = false;          // FlashH2D and FlashD2H: one gather, one bulk copy; otherwise a copy call per block
  bool controls = false;         // working-set-aware batch control
  bool segments = false;         // prefill holds one layer's KV and saved activations instead of the prompt's whole KV
  bool overlaps = false;         // queries are predicted a layer ahead: selection and loads go on beside compute
  uint32_t inject_tokens = 512;  // the most prefill tokens beside decode steps
  // Time between tokens from which injected prefill tokens are found (InjectController); 0: inject_tokens.
  double tpot_target_us = 0;
  uint32_t budget_rows = 2048;
  uint32_t max_running = 512;
};

// From dense attention with all KV in GPU memory upwards, one step each.
std::vector<ServingSystem> Ladder();

// The last of them without working-set control.
ServingSystem WithoutControl();

}  // namespace winnow::serving
