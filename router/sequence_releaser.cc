#include "router/sequence_releaser.h"

#include <utility>

#include "winnow/v1/cache.grpc.pb.h"

namespace winnow {
namespace {

// A cache rank that answers none of so many calls is lost itself.
constexpr size_t kMaxQueued = 4096;

}  // namespace

SequenceReleaser::SequenceReleaser(ChannelFactory channels, std::chrono::milliseconds call_timeout)
    : channels_(std::move(channels)), call_timeout_(call_timeout), thread_([this] { Loop(); }) {}

SequenceReleaser::~SequenceReleaser() {
  Stop();
}

void SequenceReleaser::Release(uint64_t sequence_id, const v1::Identity& cache_rank) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || tasks_.size() >= kMaxQueued) return;
    tasks_.push_back({sequence_id, cache_rank.address()});
  }
  changed_.notify_one();
}

void SequenceReleaser::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    tasks_.clear();
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void SequenceReleaser::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    Call(task);
    lock.lock();
  }
}

void SequenceReleaser::Call(const Task& task) const {
  v1::ReleaseSequenceRequest request;
  request.set_sequence_id(task.sequence_id);
  request.set_attach_epoch(0);  // of whoever held it last
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + call_timeout_);
  v1::ReleaseSequenceResponse response;
  (void)v1::CacheService::NewStub(channels_(task.address))->ReleaseSequence(&context, request, &response);
}

}  // namespace winnow
