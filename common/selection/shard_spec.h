#pragma once
#include "common/base/kv_shard.h"
#include "common/selection/selection_spec.h"
#include "winnow/v1/cache.pb.h"

namespace winnow {

// A specification as it is for a shard: budgets by head are those of its lists. All else holds for each head alone.
SelectionSpec SpecOfShard(const SelectionSpec& spec, const KvLayout& layout, const KvShard& shard);

v1::KvShard ToProto(const KvShard& shard);
// As it says: CheckShard tells whether it is a part of the model.
KvShard FromProto(const v1::KvShard& proto);

}  // namespace winnow
