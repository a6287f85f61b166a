#include "router/dispatch/prefix_routes.h"

#include <utility>

#include "common/base/prefix_hash.h"

namespace winnow {

std::vector<uint64_t> PrefixRoutes::HashesOf(const std::string& tenant, std::span<const uint32_t> prompt) {
  std::vector<uint64_t> hashes;
  hashes.reserve(prompt.size() / kBlockTokens);
  uint64_t hash = PrefixRoot(tenant);
  for (; prompt.size() >= kBlockTokens; prompt = prompt.subspan(kBlockTokens)) {
    hash = ExtendPrefix(hash, prompt.first(kBlockTokens));
    hashes.push_back(hash);
  }
  return hashes;
}

Placement PrefixRoutes::Find(std::span<const uint64_t> hashes) const {
  std::lock_guard lock(mutex_);
  for (; !hashes.empty(); hashes = hashes.first(hashes.size() - 1)) {
    for (const Generation* generation : {&newer_, &older_}) {
      if (const auto found = generation->find(hashes.back()); found != generation->end()) return *found->second;
    }
  }
  return {};
}

void PrefixRoutes::Remember(std::span<const uint64_t> hashes, const Placement& cache_ranks) {
  const auto placement = std::make_shared<const Placement>(cache_ranks);
  std::lock_guard lock(mutex_);
  for (const uint64_t hash : hashes) {
    if (newer_.size() >= max_blocks_ / 2) older_ = std::exchange(newer_, {});
    newer_[hash] = placement;
  }
}

}  // namespace winnow
