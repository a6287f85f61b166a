#include "router/membership/rank_record.h"

namespace winnow {

const RankRecord* MembershipSnapshot::Find(v1::Role role, const RankKey& key) const {
  for (const RankRecord& record : ranks) {
    if (record.identity.role() == role && KeyOf(record.identity) == key) return &record;
  }
  return nullptr;
}

}  // namespace winnow
