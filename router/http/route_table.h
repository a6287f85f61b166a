#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "router/http/http_options.h"

namespace winnow {

// Finds the handler of a request by path and method. Fill it before the server starts; Dispatch is const.
class RouteTable {
 public:
  explicit RouteTable(HttpErrorFormatter format_error = DefaultHttpError) : format_error_(std::move(format_error)) {}

  // `pattern` is a path; one that ends in "/*" matches every longer path. Its tail is had with PathTail.
  void Add(HttpMethod method, std::string pattern, HttpHandler handler);

  // Calls the handler; HEAD goes to GET's. Otherwise answers itself: OPTIONS with 204 and Allow, an unknown path with
  // 404, a known path with another method with 405 and Allow.
  void Dispatch(std::shared_ptr<HttpExchange> exchange) const;

 private:
  struct Route {
    HttpMethod method;
    std::string pattern;
    HttpHandler handler;
  };

  HttpErrorFormatter format_error_;
  std::vector<Route> routes_;
};

// What follows `prefix` in the path, percent-decoded; empty when the path is shorter or malformed.
std::string PathTail(const HttpRequest& request, std::string_view prefix);

}  // namespace winnow
