#pragma once
#include <chrono>
#include <string>

#include "common/base/status.h"

namespace winnow {

struct HttpAnswer {
  int status = 0;
  std::string body;
};

// One GET of a small document, without keep-alive; for supervision, not for traffic. UNAVAILABLE when nobody answers in
// time.
absl::StatusOr<HttpAnswer> HttpGet(const std::string& address, const std::string& path,
                                   std::chrono::milliseconds timeout);

}  // namespace winnow
