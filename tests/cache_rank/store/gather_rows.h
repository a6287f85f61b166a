#pragma once
#include "cache_rank/store/sequence_kv.h"

namespace winnow::test {

// SequenceKv::GatherRows of one list.
inline void GatherRows(const SequenceKv& kv, int layer, int head, std::span<const uint32_t> positions, std::byte* out,
                       Executor* team = nullptr) {
  const WantedRows wanted{.kv = &kv, .layer = layer, .head = head, .positions = positions, .out = out};
  SequenceKv::GatherRows({&wanted, 1}, team);
}

}  // namespace winnow::test
