// A child process for supervisor tests: does what the lines of its configuration say.
//
//   log TEXT                 a line on stderr
//   report KEY ADDRESS       reports an address
//   ready                    reports readiness
//   drain FILE               is ready; after SIGTERM it logs "draining" and ends once there is FILE, or a second
//   SIGTERM ignore-term              SIGTERM has no effect from here on count FILE               appends one byte to
//   FILE (the number of starts) exit-unless FILE N CODE  exits with CODE unless FILE has at least N bytes exit CODE
//   wait                     until a signal comes
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "cmd/role/parent_report.h"
#include "cmd/up/child_process.h"

int main() {
  winnow::ParentReport report(winnow::kReportFd);
  std::ifstream script("/dev/fd/" + std::to_string(winnow::kConfigFd));
  for (std::string line; std::getline(script, line);) {
    std::istringstream words(line);
    std::string command, a, b;
    int code = 0;
    words >> command;
    if (command == "log") {
      std::getline(words >> std::ws, a);
      std::cerr << a << std::endl;
    } else if (command == "report") {
      words >> a >> b;
      report.Address(a, b);
    } else if (command == "ready") {
      report.Ready();
    } else if (command == "drain") {
      words >> a;
      sigset_t term;
      sigemptyset(&term);
      sigaddset(&term, SIGTERM);
      sigprocmask(SIG_BLOCK, &term, nullptr);
      report.Ready();
      int signal_number = 0;
      sigwait(&term, &signal_number);
      std::cerr << "draining" << std::endl;
      const timespec moment{0, 1'000'000};
      while (!std::filesystem::exists(a) && sigtimedwait(&term, nullptr, &moment) != SIGTERM) continue;
      report.Drained();
      return 0;
    } else if (command == "ignore-term") {
      signal(SIGTERM, SIG_IGN);
    } else if (command == "count") {
      words >> a;
      std::ofstream(a, std::ios::app) << 'x';
    } else if (command == "exit-unless") {
      size_t count = 0;
      words >> a >> count >> code;
      if (std::filesystem::file_size(a) < count) return code;
    } else if (command == "exit") {
      words >> code;
      return code;
    } else if (command == "wait") {
      while (true) pause();
    } else {
      std::cerr << "unknown command: " << line << std::endl;
      return 99;
    }
  }
}
