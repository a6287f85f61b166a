#pragma once

namespace winnow {

// Has gRPC's listening sockets outlive a lack of descriptors. gRPC 1.51 closes a listening socket for good when
// accept4() fails with EMFILE, and the process would never be reached again though everything else of it works. With a
// spare descriptor whoever waits to be accepted is accepted and sent away at once, so that gRPC sees an empty queue and
// listens on; clients come again. Once, at the start of a process.
//
// The file that implements this defines accept4() for the whole program.
void KeepSpareDescriptor();

}  // namespace winnow
