#pragma once
#include <string>

namespace winnow::e2e {

struct Outcome {
  int code = 0;
  std::string output;  // of both streams
};

// `winnow COMMAND`, with WINNOW_SERVER set to `servers`.
Outcome RunWinnow(const std::string& servers, const std::string& command);

}  // namespace winnow::e2e
