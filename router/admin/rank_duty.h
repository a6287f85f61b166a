#pragma once
#include <optional>
#include <string_view>

#include "router/membership/registry.h"
#include "winnow/v1/cluster_admin.pb.h"

namespace winnow {

v1::RankDuty ToProto(RankDuty duty);
// INVALID_ARGUMENT names a duty that this router does not know.
absl::StatusOr<RankDuty> FromProto(v1::RankDuty duty);

// "serve", "cordoned", "drain".
const char* NameOf(RankDuty duty);
std::optional<RankDuty> RankDutyOf(std::string_view name);

}  // namespace winnow
