#pragma once
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace winnow {

enum class HttpMethod { kGet, kHead, kPost, kPut, kDelete, kPatch, kOptions, kOther };

struct HttpHeader {
  std::string name;
  std::string value;
};

// A request whose body has been read completely.
struct HttpRequest {
  HttpMethod method = HttpMethod::kOther;
  std::string path;   // as sent (percent-encoded), without the query
  std::string query;  // what follows '?', empty without
  std::vector<HttpHeader> headers;
  std::string body;
  std::string request_id;  // the client's x-request-id where it is usable, else generated
  std::chrono::steady_clock::time_point received_at;

  // Value of the first header of that name (case does not matter); null when there is none.
  const std::string* FindHeader(std::string_view name) const;
};

// `body` is sent with Content-Length; the server adds the framing headers and x-request-id itself.
struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<HttpHeader> headers = {};
};

HttpMethod ParseMethod(std::string_view name);
std::string_view MethodName(HttpMethod method);
std::string_view ReasonPhrase(int status);

// Resolves %XX; false when an escape is malformed.
bool PercentDecode(std::string_view text, std::string* out);

}  // namespace winnow
