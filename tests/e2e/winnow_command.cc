#include "tests/e2e/winnow_command.h"

#include <sys/wait.h>

#include <cstdio>

#include "tests/e2e/cluster.h"

namespace winnow::e2e {

Outcome RunWinnow(const std::string& servers, const std::string& command) {
  const std::string line = "WINNOW_SERVER=" + servers + " " + WinnowBinary() + " " + command + " 2>&1";
  std::FILE* const pipe = popen(line.c_str(), "r");
  Outcome outcome;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) outcome.output += static_cast<char>(c);
  outcome.code = WEXITSTATUS(pclose(pipe));
  return outcome;
}

}  // namespace winnow::e2e
