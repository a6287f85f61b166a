#include "cache_rank/step/plan_rows.h"

#include <algorithm>
#include <cstring>

#include "cache_rank/step/frame_checks.h"

namespace winnow {

absl::Status ReadPlanRows(const ReceivedFrame& frame, std::vector<wire::PlanRow>* rows) {
  const wire::FrameHeader& header = frame.header();
  const size_t bytes = header.row_count * sizeof(wire::PlanRow);
  WINNOW_RETURN_IF_ERROR(CheckPayload(frame, bytes));
  rows->resize(header.row_count);
  if (bytes > 0) std::memcpy(rows->data(), frame.payload().data(), bytes);
  std::vector<uint64_t> ids;
  ids.reserve(rows->size());
  for (const wire::PlanRow& row : *rows) ids.push_back(row.sequence_id);
  std::sort(ids.begin(), ids.end());
  if (const auto twice = std::adjacent_find(ids.begin(), ids.end()); twice != ids.end()) {
    return absl::InvalidArgumentError(absl::StrCat("sequence ", *twice, " is in plan ", header.plan, " twice"));
  }
  return absl::OkStatus();
}

}  // namespace winnow
