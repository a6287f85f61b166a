#include "cmd/role/machine.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace winnow {

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

int64_t FreeMemoryBytes() {
  int64_t free_bytes = std::numeric_limits<int64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    if (line.rfind("MemAvailable:", 0) == 0) free_bytes = std::stoll(line.substr(13)) * 1024;
  }
  // "max" where the cgroup sets no limit, which is no number.
  std::ifstream limit_file("/sys/fs/cgroup/memory.max"), used_file("/sys/fs/cgroup/memory.current");
  int64_t limit = 0, used = 0;
  if (limit_file >> limit && used_file >> used) free_bytes = std::min(free_bytes, std::max<int64_t>(0, limit - used));
  return free_bytes;
}

int ResolveThreads(int threads) {
  return threads > 0 ? threads : UsableCores();
}

}  // namespace winnow
