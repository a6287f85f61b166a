#pragma once
#include <atomic>
#include <map>
#include <set>
#include <string>

#include "tests/e2e/completion.h"
#include "tests/e2e/router_pair.h"

namespace winnow::e2e {

// A client that does what docs/api.md says: keeps the token and the id of its last event, and when its stream ends
// before [DONE], or no router answers, asks the next router for the rest.
class ResumingClient {
 public:
  static constexpr const char* kPath = "/v1/completions";

  ResumingClient(const RouterPair& routers, Json request, int router = 0);

  // Reads until the answer is complete, or nobody has had it for a minute; or, with `cut_after`, until so many tokens
  // have come, and closes the connection. `stay`: asks the same router.
  void Read(size_t cut_after = SIZE_MAX, bool stay = false);

  size_t tokens() const;
  bool done() const { return done_; }  // any thread
  const TokenIds& ids(int choice = 0) { return ids_[choice]; }
  const std::string& text(int choice = 0) { return text_[choice]; }
  const std::string& error() const { return error_; }
  const std::string& token() const { return token_; }
  const std::string& last_id() const { return last_id_; }
  int finishes() const { return finishes_; }

 private:
  void Take(const ServerSentEvent& event);

  const RouterPair& routers_;
  Json request_;
  int router_;
  std::string token_, last_id_, error_;
  std::set<std::string> seen_;
  std::map<int, TokenIds> ids_;
  std::map<int, std::string> text_;
  int finishes_ = 0;
  std::atomic<bool> done_ = false;
};

}  // namespace winnow::e2e
