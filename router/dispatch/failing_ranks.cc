#include "router/dispatch/failing_ranks.h"

#include <algorithm>

namespace winnow {
namespace {

// Of a rank that nobody has tried since; it may be gone.
constexpr std::chrono::minutes kForgotten{10};

}  // namespace

void FailingRanks::Failed(const RankKey& rank, Time now) {
  std::lock_guard lock(mutex_);
  std::erase_if(records_, [&](const auto& entry) { return now - entry.second.last > kForgotten; });
  Record& record = records_[rank];
  if (record.failures > 0 && now - record.last < kAtOnce) return;
  record.last = now;
  if (++record.failures < kFailures) return;
  const uint32_t doublings = std::min(record.failures - kFailures, 10u);
  record.until = now + std::min<Time::duration>(kFirstPause * (1 << doublings), kLongestPause);
}

void FailingRanks::Succeeded(const RankKey& rank) {
  std::lock_guard lock(mutex_);
  records_.erase(rank);
}

Placement FailingRanks::At(Time now) const {
  Placement ranks;
  std::lock_guard lock(mutex_);
  for (const auto& [rank, record] : records_) {
    if (now < record.until) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace winnow
