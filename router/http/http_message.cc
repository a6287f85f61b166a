#include "router/http/http_message.h"

#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/base/status.h"

namespace winnow {
namespace {

constexpr std::array<std::pair<std::string_view, HttpMethod>, 7> kMethods = {{{"GET", HttpMethod::kGet},
                                                                              {"HEAD", HttpMethod::kHead},
                                                                              {"POST", HttpMethod::kPost},
                                                                              {"PUT", HttpMethod::kPut},
                                                                              {"DELETE", HttpMethod::kDelete},
                                                                              {"PATCH", HttpMethod::kPatch},
                                                                              {"OPTIONS", HttpMethod::kOptions}}};

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = absl::ascii_tolower(static_cast<unsigned char>(c));
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

const std::string* HttpRequest::FindHeader(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (absl::EqualsIgnoreCase(header.name, AbslSv(name))) return &header.value;
  }
  return nullptr;
}

HttpMethod ParseMethod(std::string_view name) {
  for (const auto& [text, method] : kMethods) {
    if (text == name) return method;
  }
  return HttpMethod::kOther;
}

std::string_view MethodName(HttpMethod method) {
  for (const auto& [text, candidate] : kMethods) {
    if (candidate == method) return text;
  }
  return "OTHER";
}

std::string_view ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Status";
  }
}

bool PercentDecode(std::string_view text, std::string* out) {
  out->clear();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out->push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return false;
    const int high = HexValue(text[i + 1]);
    const int low = HexValue(text[i + 2]);
    if (high < 0 || low < 0) return false;
    out->push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return true;
}

}  // namespace winnow
