#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// What is kept of the rows of streaming heads (common/selection/attended_set.h): the sinks, and the newest rows, enough
// to refill an inference rank's ring at any position that a re-attach may go back to.
struct KvRetention {
  // Positions that a re-attach may drop without finding rows of streaming heads gone: in lockstep 2, and those back to
  // an anchor. Further back the prompt is prefilled again.
  static constexpr uint32_t kRestartSlack = 2 * kBlockTokens;

  static KvRetention Of(const SelectionSpec& spec, const KvLayout& layout);
  bool Streams(size_t list) const { return !streams.empty() && streams[list]; }
  // Blocks below hold the sinks; those that end at or below FirstNewest(rows) are given back.
  uint32_t FirstNewest(uint32_t rows) const { return rows > newest_tokens ? rows - newest_tokens : 0; }
  // Most blocks of rows of a streaming list at a time, for a sequence of at most max_positions.
  size_t MostBlocks(uint32_t max_positions) const;

  std::vector<bool> streams = {};  // [list]; empty: no list does
  uint32_t sink_tokens = 0;
  uint32_t newest_tokens = 0;
};

}  // namespace winnow
