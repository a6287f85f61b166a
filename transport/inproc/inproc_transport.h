#pragma once
#include <memory>

#include "transport/link_faults.h"
#include "transport/transport.h"

namespace winnow {

// NewInprocTransport with a link that lies; for tests.
std::unique_ptr<Transport> NewInprocTransport(const TransportOptions& options, LinkFaults faults);

}  // namespace winnow
