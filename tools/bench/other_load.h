#pragma once
#include <sys/types.h>

#include <chrono>
#include <vector>

namespace winnow {

// How much of the machine's cores other processes take, from /proc/stat less the time of this process and of `ours`,
// which must live on. A figure taken on a shared machine is only worth something beside it.
class OtherLoad {
 public:
  // Begins an interval.
  explicit OtherLoad(std::vector<pid_t> ours = {});
  // Share of one core since then. The kernel counts in hundredths of a second: 20 ms are forgiven.
  double Share() const;

 private:
  double OwnSeconds() const;

  const std::vector<pid_t> ours_;
  const std::chrono::steady_clock::time_point start_;
  const double busy_s_, own_s_;
};

// Returns when others take less than `limit` of a core, or when `*allowance_s` has been waited away.
void WaitForQuiet(double limit, double* allowance_s, const std::vector<pid_t>& ours = {});

}  // namespace winnow
