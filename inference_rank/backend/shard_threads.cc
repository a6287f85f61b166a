#include "inference_rank/backend/shard_threads.h"

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

ShardThreads::ShardThreads(int num_shards) {
  for (int shard = 0; shard < num_shards; ++shard) threads_.emplace_back([this, shard] { Loop(shard); });
}

ShardThreads::~ShardThreads() {
  stopping_ = true;
  Change(runs_);
  for (std::thread& thread : threads_) thread.join();
}

void ShardThreads::Loop(int shard) {
  for (uint32_t run = 0;; ++run) {
    AwaitChange(runs_, run);
    if (stopping_) return;
    (*work_)(shard);
    ++ended_;
    Change(changes_);
  }
}

void ShardThreads::Run(const std::function<void(int)>& work, const std::function<void()>& serve) {
  work_ = &work;
  waiting_ = ended_ = 0;
  broken_ = false;
  Change(runs_);
  while (true) {
    const uint32_t seen = changes_.load(std::memory_order_acquire);
    const int ended = ended_, waiting = waiting_;
    if (ended == num_shards()) return;
    if (ended + waiting < num_shards() || waiting == 0) {
      AwaitChange(changes_, seen);
      continue;
    }
    if (ended > 0) {
      broken_ = true;
    } else {
      serve();
    }
    waiting_ = 0;
    Change(served_);
  }
}

bool ShardThreads::AwaitAll() {
  const uint32_t seen = served_.load(std::memory_order_acquire);
  if (broken_) return false;
  ++waiting_;
  Change(changes_);
  AwaitChange(served_, seen);
  return !broken_;
}

}  // namespace winnow
