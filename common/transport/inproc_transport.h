#pragma once
#include <memory>

#include "common/transport/link_faults.h"
#include "common/transport/transport.h"

namespace winnow {

// NewInprocTransport with a link that lies; for tests.
std::unique_ptr<Transport> NewInprocTransport(const TransportOptions& options, LinkFaults faults);

}  // namespace winnow
