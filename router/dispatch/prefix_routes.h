#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "router/membership/registry.h"

namespace winnow {

// Which cache ranks last got a prompt that begins alike, by the hashes of its blocks (common/base/prefix_hash.h). A
// memory of what was sent, not of what the ranks still hold: a wrong answer costs a prefill, never a wrong output.
// Bounded; what was not asked for lately is forgotten. Thread-safe.
class PrefixRoutes {
 public:
  explicit PrefixRoutes(size_t max_blocks = size_t{1} << 20) : max_blocks_(max_blocks) {}

  // One hash per whole block of the prompt.
  static std::vector<uint64_t> HashesOf(const std::string& tenant, std::span<const uint32_t> prompt);

  // The ranks of the longest known prefix; empty where there is none.
  Placement Find(std::span<const uint64_t> hashes) const;
  void Remember(std::span<const uint64_t> hashes, const Placement& cache_ranks);

 private:
  using Generation = std::unordered_map<uint64_t, std::shared_ptr<const Placement>>;
  const size_t max_blocks_;
  mutable std::mutex mutex_;
  Generation newer_, older_;  // when `newer_` is full it becomes `older_`
};

}  // namespace winnow
