#pragma once
#include <cstdint>

#include "kernels/device/params/prefill_attention.h"

namespace winnow::device {

// Which keys a query sees, and which tiles of kTile keys a run of queries [first, last] has to visit. A row's result
// does not depend on the run it is in: tiles begin at multiples of kTile and come in ascending order, and a tile in
// which a row sees nothing leaves that row's state as it is, bit by bit.
template <int kTile>
struct PrefillMask {
  int first, last;    // positions of the run
  int window, sinks;  // window 0: everything up to the query

  __device__ PrefillMask(const PrefillAttentionParams& p, int kv_head, int first_query, int num_rows)
      : first(static_cast<int>(p.first_position) + first_query),
        last(static_cast<int>(p.first_position) + min(first_query + num_rows, p.num_queries) - 1),
        window(static_cast<int>(p.streaming_window != nullptr ? p.streaming_window[kv_head] : p.sliding_window)),
        sinks(p.streaming_window != nullptr ? static_cast<int>(p.streaming_sinks) : 0) {}

  __device__ bool Sees(int position, int key) const {
    return key <= position && (window == 0 || key < sinks || position - key < window);
  }

  __device__ int FirstTile() const { return Skip(0); }
  __device__ int NextTile(int tile) const { return Skip(tile + 1); }
  __device__ int EndTile() const { return last / kTile + 1; }

  // Whether some of the rows [first_row, last] may not see all of the tile.
  __device__ bool IsPartial(int tile, int first_row) const {
    const int begin = tile * kTile, end = begin + kTile;
    if (end - 1 > first_row) return true;
    return window != 0 && end > sinks && last - begin >= window;
  }

 private:
  __device__ int Skip(int tile) const {
    if (window == 0 || tile * kTile < sinks) return tile;
    return max(tile, max(first - window + 1, 0) / kTile);
  }
};

}  // namespace winnow::device
