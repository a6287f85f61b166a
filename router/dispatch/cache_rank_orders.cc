#include "router/dispatch/cache_rank_orders.h"

#include <algorithm>
#include <utility>

#include "winnow/v1/cache.grpc.pb.h"
#include "winnow/v1/replication.grpc.pb.h"

namespace winnow {
namespace {

constexpr size_t kMaxQueued = 4096;

}  // namespace

CacheRankOrders::CacheRankOrders(ChannelFactory channels, const Options& options)
    : channels_(std::move(channels)), options_(options), thread_([this] { Loop(); }) {}

CacheRankOrders::~CacheRankOrders() {
  Stop();
}

void CacheRankOrders::Release(uint64_t sequence_id, const v1::Identity& cache_rank) {
  Add({.sequence_id = sequence_id, .replica = std::nullopt, .give_up_at = {}}, cache_rank.address());
}

void CacheRankOrders::KeepReplica(uint64_t sequence_id, const v1::Identity& cache_rank, const v1::Identity& replica) {
  Add({.sequence_id = sequence_id, .replica = replica, .give_up_at = {}}, cache_rank.address());
}

void CacheRankOrders::Add(Task task, const std::string& address) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || num_tasks_ >= kMaxQueued) return;
    task.give_up_at = std::chrono::steady_clock::now() + options_.patience;
    ranks_[address].tasks.push_back(std::move(task));
    ++num_tasks_;
  }
  changed_.notify_one();
}

void CacheRankOrders::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void CacheRankOrders::Loop() {
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
    const Task task = next->second.tasks.front();
    lock.unlock();
    const bool answered = Call(address, task);
    lock.lock();
    Settle(address, answered, std::chrono::steady_clock::now());
  }
}

void CacheRankOrders::Settle(const std::string& address, bool answered, Time now) {
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

bool CacheRankOrders::Call(const std::string& address, const Task& task) const {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + options_.call_timeout);
  grpc::Status status;
  if (task.replica.has_value()) {
    v1::KeepReplicaRequest request;
    *request.mutable_identity() = options_.identity;
    request.set_sequence_id(task.sequence_id);
    *request.mutable_replica() = *task.replica;
    v1::KeepReplicaResponse response;
    status = v1::ReplicationService::NewStub(channels_(address))->KeepReplica(&context, request, &response);
  } else {
    v1::ReleaseSequenceRequest request;
    request.set_sequence_id(task.sequence_id);
    request.set_attach_epoch(0);  // of whoever held it last
    v1::ReleaseSequenceResponse response;
    status = v1::CacheService::NewStub(channels_(address))->ReleaseSequence(&context, request, &response);
  }
  const grpc::StatusCode code = status.error_code();
  return code != grpc::StatusCode::UNAVAILABLE && code != grpc::StatusCode::DEADLINE_EXCEEDED;
}

}  // namespace winnow
