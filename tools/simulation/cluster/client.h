#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tools/simulation/cluster/cluster.h"

namespace winnow::simulation {

// Sends requests to the cluster's router, and sees what comes back. What it finds wrong at once is a violation.
class Clients {
 public:
  // `expected` must outlive it.
  Clients(Cluster* cluster, const Answers* expected) : cluster_(cluster), expected_(expected) {}

  // All samples of the request, from a thread of the router. Each of them is cancelled after so many tokens, if it has
  // more; UINT32_MAX: not.
  void Send(size_t request, std::chrono::seconds timeout, uint32_t cancel_after = UINT32_MAX);

  size_t num_open() const { return num_open_; }
  const std::vector<std::string>& violations() const { return violations_; }
  // Samples that have ended, and tokens.
  uint64_t num_ended = 0, num_tokens = 0, num_cancelled = 0, num_not_identical = 0;
  // By sample, of the requests so far: to be the expected answers of others.
  std::vector<std::vector<uint32_t>> Ids() const;

 private:
  class Sample;
  void Violation(const Sample& sample, const std::string& what);

  Cluster* const cluster_;
  const Answers* const expected_;
  std::deque<std::shared_ptr<Sample>> samples_;
  std::vector<std::string> violations_;
  size_t num_open_ = 0;
  uint64_t next_group_ = 1;
};

}  // namespace winnow::simulation
