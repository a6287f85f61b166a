#include "tools/bench/other_load.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace winnow {
namespace {

// All cores together: user, nice, system, irq, softirq; not idle and waiting for a disk.
double BusySeconds() {
  std::ifstream in("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, io = 0, irq = 0, soft = 0;
  in >> name >> user >> nice >> system >> idle >> io >> irq >> soft;
  return (user + nice + system + irq + soft) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// User and system time of a process; 0 when it is gone.
double ProcessSeconds(const std::string& pid) {
  std::ifstream in("/proc/" + pid + "/stat");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const size_t after_name = text.rfind(')');
  if (after_name == std::string::npos) return 0;
  std::istringstream fields(text.substr(after_name + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;  // state ... cmajflt
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

OtherLoad::OtherLoad(std::vector<pid_t> ours)
    : ours_(std::move(ours)), start_(std::chrono::steady_clock::now()), busy_s_(BusySeconds()), own_s_(OwnSeconds()) {}

double OtherLoad::Share() const {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  return std::max(0.0, BusySeconds() - busy_s_ - (OwnSeconds() - own_s_) - 0.02) / seconds;
}

double OtherLoad::OwnSeconds() const {
  double seconds = ProcessSeconds("self");
  for (const pid_t pid : ours_) seconds += ProcessSeconds(std::to_string(pid));
  return seconds;
}

void WaitForQuiet(double limit, double* allowance_s, const std::vector<pid_t>& ours) {
  constexpr double kLookSeconds = 0.4;
  while (*allowance_s > 0) {
    const OtherLoad load(ours);
    std::this_thread::sleep_for(std::chrono::duration<double>(kLookSeconds));
    if (load.Share() < limit) return;
    *allowance_s -= kLookSeconds;
  }
}

}  // namespace winnow
