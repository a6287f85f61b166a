#include "inference_rank/backend/shard_team.h"

#include <chrono>

namespace winnow {
namespace {

constexpr auto kSpin = std::chrono::microseconds(100);

// Until `word` is no longer `seen`. Yields to whoever needs the core before it sleeps.
void AwaitChange(const std::atomic<uint32_t>& word, uint32_t seen) {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  while (word.load(std::memory_order_acquire) == seen) {
    std::this_thread::yield();
    if (std::chrono::steady_clock::now() > until) word.wait(seen, std::memory_order_acquire);
  }
}

void Change(std::atomic<uint32_t>& word) {
  word.fetch_add(1, std::memory_order_acq_rel);
  word.notify_all();
}

}  // namespace

ShardTeam::ShardTeam(int num_shards) {
  for (int shard = 0; shard < num_shards; ++shard) threads_.emplace_back([this, shard] { Loop(shard); });
}

ShardTeam::~ShardTeam() {
  stopping_ = true;
  Change(runs_);
  for (std::thread& thread : threads_) thread.join();
}

void ShardTeam::Loop(int shard) {
  for (uint32_t run = 0;; ++run) {
    AwaitChange(runs_, run);
    if (stopping_) return;
    (*work_)(shard);
    ++ended_;
    Change(changes_);
  }
}

void ShardTeam::Run(const std::function<void(int)>& work, const std::function<void()>& serve) {
  work_ = &work;
  meeting_ = ended_ = 0;
  broken_ = false;
  Change(runs_);
  while (true) {
    const uint32_t seen = changes_.load(std::memory_order_acquire);
    const int ended = ended_, meeting = meeting_;
    if (ended == num_shards()) return;
    if (ended + meeting < num_shards() || meeting == 0) {
      AwaitChange(changes_, seen);
      continue;
    }
    if (ended > 0) {
      broken_ = true;
    } else {
      serve();
    }
    meeting_ = 0;
    Change(served_);
  }
}

bool ShardTeam::Meet() {
  const uint32_t seen = served_.load(std::memory_order_acquire);
  if (broken_) return false;
  ++meeting_;
  Change(changes_);
  AwaitChange(served_, seen);
  return !broken_;
}

}  // namespace winnow
