#include "cache_rank/replica/replica_feed.h"

#include <utility>

namespace winnow {

ReplicaFeed::ReplicaFeed(const std::shared_ptr<grpc::Channel>& channel, Callbacks callbacks)
    : stub_(v1::ReplicationService::NewStub(channel)), callbacks_(std::move(callbacks)), thread_([this] { Run(); }) {}

ReplicaFeed::~ReplicaFeed() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  context_.TryCancel();
  thread_.join();
}

void ReplicaFeed::Send(v1::FeedRequest request) {
  {
    std::lock_guard lock(mutex_);
    requests_.push_back(std::move(request));
  }
  changed_.notify_one();
}

std::unique_ptr<v1::FeedRequest> ReplicaFeed::Next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || !requests_.empty(); });
  if (stopping_) return nullptr;
  auto next = std::make_unique<v1::FeedRequest>(std::move(requests_.front()));
  requests_.pop_front();
  return next;
}

void ReplicaFeed::Run() {
  const auto stream = static_cast<v1::ReplicationService::StubInterface&>(*stub_).Feed(&context_);
  while (const std::unique_ptr<v1::FeedRequest> request = Next()) {
    v1::FeedResponse answer;
    if (!stream->Write(*request) || !stream->Read(&answer)) break;
    callbacks_.on_answer(std::move(answer));
  }
  stream->WritesDone();
  callbacks_.on_end(stream->Finish());
}

}  // namespace winnow
