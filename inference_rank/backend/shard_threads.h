#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace winnow {

// A thread for each GPU of a rank. In a run all of them do the same, each for its own GPU, and come together wherever
// they need the caller's thread: for what one thread alone may touch. Who waits spins for a moment, then sleeps.
class ShardThreads {
 public:
  explicit ShardThreads(int num_shards);
  ~ShardThreads();

  int num_shards() const { return static_cast<int>(threads_.size()); }
  // Runs work(shard) on the threads, and `serve` on this one whenever all of them are in AwaitAll(): then they do
  // nothing else. Returns when all have ended.
  void Run(const std::function<void(int shard)>& work, const std::function<void()>& serve);
  // Of work: returns once `serve` has run with everybody here. False, at once, when one of them has ended its work: it
  // has failed, and in this run nobody waits any more.
  bool AwaitAll();

 private:
  void Loop(int shard);

  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<uint32_t> runs_{0};     // begun
  std::atomic<uint32_t> served_{0};   // calls of `serve`, since the start
  std::atomic<uint32_t> changes_{0};  // of the two below: what the caller waits on
  std::atomic<int> waiting_{0};       // shards that wait in AwaitAll
  std::atomic<int> ended_{0};         // shards that have ended this run's work
  std::atomic<bool> broken_{false};   // nothing is served any more in this run
  std::atomic<bool> stopping_{false};
};

}  // namespace winnow
