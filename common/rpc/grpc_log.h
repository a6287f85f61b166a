#pragma once

namespace winnow {

// From now on what the gRPC library logs goes to this process's log, as warnings: failed handshakes, above all. It says
// of every connection with TLS to a numeric address that no certificate has that address as its name, which does not
// matter here (Credentials): that is left out.
void LogForGrpc();

}  // namespace winnow
