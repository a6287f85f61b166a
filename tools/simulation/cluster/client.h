#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tools/simulation/cluster/cluster.h"

namespace winnow::simulation {

// What the client of a request does beside reading.
struct Behaviour {
  uint32_t cancel_after = UINT32_MAX;  // tokens of a sample; UINT32_MAX: it does not
  // It can resume its streams (docs/api.md), and does where its router is lost.
  bool is_resumable = false;
  // It stops reading after so many tokens of a sample, or believes its connection lost, and resumes later.
  uint32_t leave_after = UINT32_MAX;
  bool comes_back = true;
};

// Sends requests to the cluster's routers, and sees what comes back. What it finds wrong at once is a violation.
class Clients {
 public:
  // `expected` must outlive it.
  Clients(Cluster* cluster, const Answers* expected);

  // All samples of the request, to any router that is there. From an event.
  void Send(size_t request, std::chrono::seconds timeout, const Behaviour& behaviour = {});

  size_t num_open() const { return num_open_; }
  const std::vector<std::string>& violations() const { return violations_; }
  // Samples that have ended, and tokens.
  uint64_t num_ended = 0, num_tokens = 0, num_cancelled = 0, num_not_identical = 0;
  uint64_t num_lost_with_router = 0;  // that were not resumable, which is no violation
  // By sample, of the requests so far: to be the expected answers of others.
  std::vector<std::vector<uint32_t>> Ids() const;

 private:
  class Call;
  struct Sample;

  void Violation(const Sample& sample, const std::string& what);
  // A router that is there, by the seed; null: none is.
  const std::string* AnyRouter() const;
  // From an event: sends these samples, new ones together, to a router.
  void Dispatch(std::vector<std::shared_ptr<Sample>> samples);
  // In a thread of the router.
  void StartCall(const std::string& router, const std::shared_ptr<Sample>& sample, uint64_t group, uint32_t group_size);
  void ComeBack(const std::shared_ptr<Sample>& sample, Nanos after);
  void OnRouterKilled(const Process* router);
  void End(Sample& sample, const char* how);

  Cluster* const cluster_;
  const Answers* const expected_;
  std::deque<std::shared_ptr<Sample>> samples_;
  std::vector<std::string> violations_;
  size_t num_open_ = 0;
  uint64_t next_group_ = 1, next_key_ = 1;
  bool router_was_killed_ = false;
};

}  // namespace winnow::simulation
