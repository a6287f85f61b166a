#pragma once
#include <memory>

#include "transport/link_faults.h"
#include "transport/transport.h"

namespace winnow {

// NewUcxTransport with a link that lies; for tests.
absl::StatusOr<std::unique_ptr<Transport>> NewUcxTransport(const TransportOptions& options, LinkFaults faults);

}  // namespace winnow
