#pragma once
#include <chrono>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/config/parse_value.h"

namespace winnow {

// Where a collector takes traces.
struct OtlpEndpoint {
  HostPort address;
  std::string path;  // "/v1/traces", or below the path of the endpoint

  // "http://HOST[:PORT][/PATH]", as in OTEL_EXPORTER_OTLP_ENDPOINT: "/v1/traces" comes behind it; without a port 4318.
  // INVALID_ARGUMENT for anything else, UNIMPLEMENTED for https.
  static absl::StatusOr<OtlpEndpoint> Parse(std::string_view url);
  std::string ToString() const;
};

// One POST of JSON over a connection of its own. UNAVAILABLE where nobody answers in time, or the answer is to be asked
// for again (429, 502, 503, 504); FAILED_PRECONDITION where the collector refuses what it was sent.
absl::Status PostJson(const OtlpEndpoint& endpoint, const std::string& body, std::chrono::milliseconds timeout);

}  // namespace winnow
