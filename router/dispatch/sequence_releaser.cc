#include "router/dispatch/sequence_releaser.h"

#include <algorithm>
#include <utility>

#include "winnow/v1/cache.grpc.pb.h"

namespace winnow {
namespace {

constexpr size_t kMaxQueued = 4096;

}  // namespace

SequenceReleaser::SequenceReleaser(ChannelFactory channels, const Options& options)
    : channels_(std::move(channels)), options_(options), thread_([this] { Loop(); }) {}

SequenceReleaser::~SequenceReleaser() {
  Stop();
}

void SequenceReleaser::Release(uint64_t sequence_id, const v1::Identity& cache_rank) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || num_tasks_ >= kMaxQueued) return;
    ranks_[cache_rank.address()].tasks.push_back({sequence_id, std::chrono::steady_clock::now() + options_.patience});
    ++num_tasks_;
  }
  changed_.notify_one();
}

void SequenceReleaser::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void SequenceReleaser::Loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto next = std::min_element(ranks_.begin(), ranks_.end(), [](const auto& a, const auto& b) {
      return a.second.next_call < b.second.next_call;
    });
    if (next == ranks_.end()) {
      changed_.wait(lock);
      continue;
    }
    if (const Time at = next->second.next_call; at > std::chrono::steady_clock::now()) {
      changed_.wait_until(lock, at);
      continue;  // another rank may be due by now
    }
    const std::string address = next->first;
    const uint64_t sequence_id = next->second.tasks.front().sequence_id;
    lock.unlock();
    const bool answered = Call(address, sequence_id);
    lock.lock();
    Settle(address, answered, std::chrono::steady_clock::now());
  }
}

void SequenceReleaser::Settle(const std::string& address, bool answered, Time now) {
  CacheRank& rank = ranks_.at(address);
  const size_t before = rank.tasks.size();
  if (answered) rank.tasks.pop_front();
  while (!rank.tasks.empty() && rank.tasks.front().give_up_at <= now) rank.tasks.pop_front();
  num_tasks_ -= before - rank.tasks.size();
  if (rank.tasks.empty()) {
    ranks_.erase(address);
    return;
  }
  rank.pause = answered ? std::chrono::milliseconds(0)
                        : std::clamp(2 * rank.pause, options_.first_pause, options_.longest_pause);
  rank.next_call = now + rank.pause;
}

bool SequenceReleaser::Call(const std::string& address, uint64_t sequence_id) const {
  v1::ReleaseSequenceRequest request;
  request.set_sequence_id(sequence_id);
  request.set_attach_epoch(0);  // of whoever held it last
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + options_.call_timeout);
  v1::ReleaseSequenceResponse response;
  const grpc::StatusCode code =
      v1::CacheService::NewStub(channels_(address))->ReleaseSequence(&context, request, &response).error_code();
  return code != grpc::StatusCode::UNAVAILABLE && code != grpc::StatusCode::DEADLINE_EXCEEDED;
}

}  // namespace winnow
