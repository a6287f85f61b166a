#include "router/admin/rank_duty.h"

namespace winnow {
namespace {

struct Line {
  RankDuty duty;
  v1::RankDuty proto;
  const char* name;
};
constexpr Line kLines[] = {{RankDuty::kServe, v1::RANK_DUTY_SERVE, "serve"},
                           {RankDuty::kCordoned, v1::RANK_DUTY_CORDONED, "cordoned"},
                           {RankDuty::kDrain, v1::RANK_DUTY_DRAIN, "drain"}};

}  // namespace

v1::RankDuty ToProto(RankDuty duty) {
  for (const Line& line : kLines) {
    if (line.duty == duty) return line.proto;
  }
  return v1::RANK_DUTY_UNSPECIFIED;
}

absl::StatusOr<RankDuty> FromProto(v1::RankDuty duty) {
  for (const Line& line : kLines) {
    if (line.proto == duty) return line.duty;
  }
  return absl::InvalidArgumentError(absl::StrCat("duty: this router does not know ", static_cast<int>(duty)));
}

const char* NameOf(RankDuty duty) {
  for (const Line& line : kLines) {
    if (line.duty == duty) return line.name;
  }
  return "";
}

std::optional<RankDuty> RankDutyOf(std::string_view name) {
  for (const Line& line : kLines) {
    if (line.name == name) return line.duty;
  }
  return std::nullopt;
}

}  // namespace winnow
