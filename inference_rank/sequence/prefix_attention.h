#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/kv_layout.h"

namespace winnow {

// How the tail of a prompt attends to the prefix that a cache has of it.
//   stream-back  all rows of the prefix come into the prompt's place in prefill
//   remote       the tail's queries go to the cache ranks, layer by layer, and states of attention come back; of the
//                rows only those come that decoding keeps
//   auto         whichever is expected to take less time: what travels, by the link's rate, and attention to the
//   prefix,
//                by the rates of who computes it; before these were measured, whichever moves fewer bytes
// The results have the same bits.
enum class PrefixAttention { kAuto, kStreamBack, kRemote };

// What the choice for one prompt depends on.
struct PrefixCase {
  KvLayout layout;
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;   // the prefix
  bool can_be_remote = false;   // this rank and all cache ranks can, and compute alike
  bool decodes_here = true;     // false: another rank goes on from the prompt, and nothing is kept
  bool keeps_all_rows = false;  // decoding begins with all rows resident, in some list at least
  uint32_t sink_tokens = 0;     // rows that are kept otherwise: of the sinks,
  uint32_t ring_tokens = 0;     // and so many of the prompt's last
  // Measured, 0 before: time for what travels, and for a token's attention to one position in one layer, computed here.
  double us_per_byte = 0;
  double us_per_position = 0;
  double remote_slowness = 1;  // how many times as long that attention takes on the cache ranks
};

// Of cache ranks whose threads are as fast as this rank's: each of `shards` does its share of the work, and the last
// one counts. It takes a quarter longer there: the prompt waits for whole frames, and 1,024 tokens behind 8,064 took
// that on the same cores.
struct PrefixShard {
  double share = 1;  // of the kv heads
  int threads = 1;
};
double RemoteSlowness(int own_threads, std::span<const PrefixShard> shards);

struct PrefixChoice {
  // Rows below it stay on the cache ranks, and queries go there. 0: all rows come.
  uint32_t end_key = 0;
  // Rows [0, sinks) and [first_row, cached_tokens) come, of all layers.
  uint32_t sinks = 0, first_row = 0;
  // Over all layers and heads: what would travel each way.
  uint64_t stream_back_bytes = 0, remote_bytes = 0;  // remote_bytes UINT64_MAX where it cannot be
  double stream_back_us = 0, remote_us = 0;          // expected, of what differs between the ways

  bool is_remote() const { return end_key > 0; }
};

// Pure.
PrefixChoice ChoosePrefixAttention(PrefixAttention wanted, const PrefixCase& prefix);

}  // namespace winnow
