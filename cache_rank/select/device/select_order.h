#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "common/selection/selection_spec.h"

namespace winnow {

// One thing that a cache rank's GPU does in a plan.
struct SelectAction {
  enum class Kind : uint8_t {
    kWaitHidden,  // of `layer`
    kWaitRows,    // and queries, of `layer`
    kQueriesOfOwn,
    kQueriesFromHidden,  // of hidden_layer
    kQueriesFromPast,
    kSelect,  // with the queries of the action before, or none
    kPush,
    kAppend,
  };
  Kind kind;
  int layer = 0;
  int hidden_layer = 0;
  friend bool operator==(const SelectAction&, const SelectAction&) = default;
};

// All that a plan takes, in the order in which one stream does it: deltas come in the order of the layers that wait for
// them, as early as their queries allow.
//   exact      the layer's own queries
//   depth      from the residual that entered `lookahead` layers earlier; the first `lookahead` layers by their own
//   fixed      as exact, without queries
//   past       (last, temporal) some layers ahead of the rows that are waited for, so that appends are never late
// Row 0 of a plan's inbox is taken before the delta of its last layer is pushed: behind that delta the inference rank
// may begin the next plan, whose first layer writes there. Nothing is pushed before the plan's first wait, behind which
// attention of the plan before has read all slots; what follows from the past alone is selected before it.
// `windows`: as ModelConfig has them; of layers with a sliding window nothing is selected and nothing kept.
std::vector<SelectAction> SelectOrder(const SelectionSpec& spec, int num_layers,
                                      std::span<const uint32_t> windows = {});

}  // namespace winnow
