#include "router/http/response_head.h"

#include <algorithm>

#include "common/base/status.h"

namespace winnow {
namespace {

void AppendHeader(std::string_view name, std::string_view value, std::string* out) {
  absl::StrAppend(out, AbslSv(name), ": ");
  const size_t begin = out->size();
  absl::StrAppend(out, AbslSv(value));
  std::replace_if(
      out->begin() + begin, out->end(), [](char c) { return c == '\r' || c == '\n' || c == '\0'; }, ' ');
  absl::StrAppend(out, "\r\n");
}

}  // namespace

std::string FormatResponseHead(const HttpResponse& response, const ResponseFraming& framing,
                               std::string_view request_id) {
  std::string head = absl::StrCat("HTTP/1.1 ", response.status, " ", AbslSv(ReasonPhrase(response.status)), "\r\n");
  if (!response.content_type.empty()) AppendHeader("Content-Type", response.content_type, &head);
  if (framing.content_length) absl::StrAppend(&head, "Content-Length: ", *framing.content_length, "\r\n");
  if (framing.chunked) absl::StrAppend(&head, "Transfer-Encoding: chunked\r\n");
  if (!framing.keep_alive) {
    absl::StrAppend(&head, "Connection: close\r\n");
  } else if (framing.http_1_0) {
    absl::StrAppend(&head, "Connection: keep-alive\r\n");
  }
  if (!request_id.empty()) AppendHeader("x-request-id", request_id, &head);
  for (const HttpHeader& header : response.headers) AppendHeader(header.name, header.value, &head);
  head += "\r\n";
  return head;
}

}  // namespace winnow
