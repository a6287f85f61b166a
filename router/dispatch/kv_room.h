#pragma once
#include <cstddef>
#include <cstdint>

#include "common/base/kv_layout.h"
#include "router/dispatch/routing_policy.h"
#include "router/membership/registry.h"

namespace winnow {

// What cache ranks set aside for so many positions of so many lists, in whole blocks: rows, and keys a second time, in
// the order in which they are scored. Indexes of pages come on top.
uint64_t KvBytes(const KvLayout& layout, size_t num_lists, uint64_t positions);

// The longest sequence, spread over as many cache ranks as it may be, for which those that take work would have room if
// nothing else were there; 0: not known. Pure.
uint32_t MostPositions(const MembershipSnapshot& snapshot, const KvLayout& layout, const ShardRange& shards);

}  // namespace winnow
