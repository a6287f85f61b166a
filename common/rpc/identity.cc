#include "common/rpc/identity.h"

#include <sys/random.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace winnow {

uint64_t RandomIncarnation() {
  uint64_t value = 0;
  while (value == 0) WINNOW_CHECK(getrandom(&value, sizeof value, 0) == sizeof value);
  return value;
}

v1::Identity MakeIdentity(const std::string& cluster, v1::Role role, const std::string& rank) {
  v1::Identity identity;
  identity.set_cluster(cluster);
  identity.set_role(role);
  identity.set_rank(rank);
  identity.set_incarnation(RandomIncarnation());
  return identity;
}

std::string ToString(const v1::Identity& identity) {
  return absl::StrCat(identity.rank(), "@", absl::Hex(identity.incarnation(), absl::kZeroPad16));
}

}  // namespace winnow
