#pragma once
#include <memory>

#include "common/transport/link_faults.h"
#include "common/transport/transport.h"

namespace winnow {

// NewUcxTransport with a link that lies; for tests.
absl::StatusOr<std::unique_ptr<Transport>> NewUcxTransport(const TransportOptions& options, LinkFaults faults);

}  // namespace winnow
