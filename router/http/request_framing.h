#pragma once
#include <boost/beast/http/message.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace winnow {

// Why a request is answered with an error before any handler sees it.
struct Refusal {
  int status;
  std::string message;
};

// What is wrong with a head that the parser accepts. Two servers on one path must agree where a request ends, or the
// one serves as a request what the other took for a body; so whatever RFC 9112 lets servers read in more than one way
// is refused here: folded lines, any Transfer-Encoding but "chunked", one beside a Content-Length or in HTTP/1.0, and a
// Content-Length that is not one number. `raw_head` is the head as it was sent, with the empty line.
std::optional<Refusal> CheckHead(std::string_view raw_head, const boost::beast::http::request_header<>& head);

}  // namespace winnow
