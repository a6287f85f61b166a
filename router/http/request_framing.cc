#include "router/http/request_framing.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace winnow {
namespace {

namespace http = boost::beast::http;
using Head = http::request_header<>;

absl::string_view AbslValue(const Head::value_type& header) {
  return {header.value().data(), header.value().size()};
}

// Values of all headers of that name, in order.
std::vector<absl::string_view> Values(const Head& head, http::field name) {
  std::vector<absl::string_view> values;
  const auto [begin, end] = head.equal_range(name);
  for (auto it = begin; it != end; ++it) values.push_back(AbslValue(*it));
  return values;
}

std::optional<Refusal> CheckTransferEncoding(const Head& head) {
  const std::vector<absl::string_view> values = Values(head, http::field::transfer_encoding);
  if (values.empty()) return std::nullopt;
  if (head.version() == 10) return Refusal{400, "HTTP/1.0 has no Transfer-Encoding."};
  if (head.count(http::field::content_length) > 0) {
    return Refusal{400, "A request must not have both Content-Length and Transfer-Encoding."};
  }
  for (const absl::string_view value : values) {
    for (const absl::string_view coding : absl::StrSplit(value, ',')) {
      if (absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(coding), "chunked")) continue;
      return Refusal{501, "The only supported Transfer-Encoding is chunked."};
    }
  }
  if (values.size() == 1 && absl::EqualsIgnoreCase(values.front(), "chunked")) return std::nullopt;
  return Refusal{400, "The Transfer-Encoding chunked must be applied once."};
}

std::optional<Refusal> CheckContentLength(const Head& head) {
  const std::vector<absl::string_view> values = Values(head, http::field::content_length);
  if (values.size() > 1) return Refusal{400, "There must be one Content-Length at most."};
  const bool number = values.empty() || std::all_of(values.front().begin(), values.front().end(), absl::ascii_isdigit);
  return number ? std::nullopt : std::optional(Refusal{400, "The Content-Length must be one decimal number."});
}

}  // namespace

std::optional<Refusal> CheckHead(std::string_view raw_head, const Head& head) {
  if (head.version() != 10 && head.version() != 11) return Refusal{400, "Only HTTP/1.0 and HTTP/1.1 are spoken here."};
  if (absl::StrContains(AbslSv(raw_head), "\r\n ") || absl::StrContains(AbslSv(raw_head), "\r\n\t")) {
    return Refusal{400, "A header must not be folded over several lines."};
  }
  const size_t hosts = head.count(http::field::host);
  if (hosts > 1) return Refusal{400, "There must be one Host header at most."};
  if (head.version() == 11 && hosts == 0) return Refusal{400, "The Host header is missing."};
  if (std::optional<Refusal> refusal = CheckTransferEncoding(head)) return refusal;
  if (std::optional<Refusal> refusal = CheckContentLength(head)) return refusal;
  const auto encoding = head.find(http::field::content_encoding);
  if (encoding != head.end() && !absl::EqualsIgnoreCase(AbslValue(*encoding), "identity")) {
    return Refusal{415, "Compressed request bodies are not supported."};
  }
  const auto expect = head.find(http::field::expect);
  if (expect != head.end() && !absl::EqualsIgnoreCase(AbslValue(*expect), "100-continue")) {
    return Refusal{417, "The only supported expectation is 100-continue."};
  }
  return std::nullopt;
}

}  // namespace winnow
