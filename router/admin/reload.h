#pragma once
#include <vector>

#include "common/tls/tls_files.h"
#include "router/keys/key_ring.h"
#include "winnow/v1/cluster_admin.pb.h"

namespace winnow {

// Reads the API keys again, which are in force at once, where there are any (`keys` may be null). Certificates are
// looked at: who uses them watches their files, so that those without an error serve the connections that are made a
// second later. Empty files are left out.
v1::ReloadResponse Reload(KeyRing* keys, const std::vector<TlsFiles>& certificates);

}  // namespace winnow
