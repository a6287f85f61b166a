#include "common/rpc/retried_calls.h"

#include <algorithm>
#include <utility>

namespace winnow {

RetriedCalls::RetriedCalls(const Options& options) : options_(options), thread_([this] { Loop(); }) {}

RetriedCalls::~RetriedCalls() {
  Stop(AtStop::kDrop);
}

void RetriedCalls::Add(const std::string& address, Call call) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || num_queued_ >= options_.max_queued) return;
    addresses_[address].calls.push_back({std::move(call), std::chrono::steady_clock::now() + options_.patience});
    ++num_queued_;
  }
  changed_.notify_one();
}

void RetriedCalls::Stop(AtStop at_stop) {
  {
    std::lock_guard lock(mutex_);
    if (!std::exchange(stopping_, true)) at_stop_ = at_stop;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void RetriedCalls::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (stopping_) {
      if (at_stop_ == AtStop::kDrop) addresses_.clear();
      std::erase_if(addresses_, [](const auto& entry) { return entry.second.pause.count() > 0; });
      if (addresses_.empty()) return;
    }
    const auto next = std::min_element(addresses_.begin(), addresses_.end(), [](const auto& a, const auto& b) {
      return a.second.next_call < b.second.next_call;
    });
    if (next == addresses_.end()) {
      changed_.wait(lock);
      continue;
    }
    if (const Time at = next->second.next_call; at > std::chrono::steady_clock::now()) {
      changed_.wait_until(lock, at);
      continue;  // another address may be due by now
    }
    const std::string address = next->first;
    Call call = std::move(next->second.calls.front().call);
    lock.unlock();
    const bool answered = call();
    lock.lock();
    if (!answered) addresses_.at(address).calls.front().call = std::move(call);
    Settle(address, answered, std::chrono::steady_clock::now());
  }
}

void RetriedCalls::Settle(const std::string& address, bool answered, Time now) {
  Address& of = addresses_.at(address);
  const size_t before = of.calls.size();
  if (answered) of.calls.pop_front();
  while (!of.calls.empty() && of.calls.front().give_up_at <= now) of.calls.pop_front();
  num_queued_ -= before - of.calls.size();
  if (of.calls.empty()) {
    addresses_.erase(address);
    return;
  }
  of.pause =
      answered ? std::chrono::milliseconds(0) : std::clamp(2 * of.pause, options_.first_pause, options_.longest_pause);
  of.next_call = now + of.pause;
}

}  // namespace winnow
