#pragma once
#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "winnow/v1/identity.pb.h"

namespace winnow {

// The version of RowLayout, as fingerprints have it.
inline constexpr uint32_t kRowLayout = 1;

// The layout of rows that a message describes; what else the message has is not looked at. INVALID_ARGUMENT names the
// field that is missing or impossible: the message comes from another process.
absl::StatusOr<KvLayout> ParseKvLayout(const v1::KvShape& shape);

// Describes the layout in the message, and leaves the message's other fields as they are.
void DescribeKvLayout(const KvLayout& layout, v1::KvShape* shape);

}  // namespace winnow
