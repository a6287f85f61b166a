#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "router/http/http_message.h"

namespace winnow {

// How the end of a response's body is found.
struct ResponseFraming {
  std::optional<size_t> content_length = {};
  bool chunked = false;
  bool keep_alive = true;
  bool http_1_0 = false;
};

// Status line and headers, with the empty line that ends them. Line breaks in header values become spaces.
std::string FormatResponseHead(const HttpResponse& response, const ResponseFraming& framing,
                               std::string_view request_id);

}  // namespace winnow
