#include "router/dispatch/rank_clients.h"

namespace winnow {

RankClients::RankClients(v1::Identity self, ChannelFactory channels, RankClient::Options options,
                         std::function<void(const v1::Identity&)> on_lost)
    : self_(std::move(self)), channels_(std::move(channels)), options_(options), on_lost_(std::move(on_lost)) {}

std::shared_ptr<RankClient> RankClients::Get(const v1::Identity& rank) {
  const RankKey key = KeyOf(rank);
  std::lock_guard lock(mutex_);
  if (closed_) return nullptr;
  std::shared_ptr<RankClient>& client = clients_[key];
  if (client) return client;
  const std::shared_ptr<grpc::Channel> channel = channels_(rank.address());
  client = std::make_shared<RankClient>(
      channel, self_, options_,
      [weak = weak_from_this(), key, rank](const absl::Status&) {
        if (const auto self = weak.lock()) self->Forget(key, rank);
      },
      CountStream(channel));
  return client;
}

std::shared_ptr<void> RankClients::CountStream(std::shared_ptr<grpc::Channel> channel) {
  std::vector<std::shared_ptr<grpc::Channel>> unused;
  std::lock_guard lock(open_streams_->mutex);
  unused.swap(open_streams_->unused_channels);
  ++open_streams_->count;
  return std::shared_ptr<void>(nullptr, [open = open_streams_, channel = std::move(channel)](void*) mutable {
    std::lock_guard lock(open->mutex);
    open->unused_channels.push_back(std::move(channel));
    --open->count;
    open->ended.notify_all();
  });
}

void RankClients::Forget(const RankKey& key, const v1::Identity& rank) {
  std::shared_ptr<RankClient> dropped;
  {
    std::lock_guard lock(mutex_);
    const auto it = clients_.find(key);
    if (it != clients_.end()) {
      dropped = std::move(it->second);
      clients_.erase(it);
    }
  }
  on_lost_(rank);
}

void RankClients::Retain(const MembershipSnapshot& snapshot) {
  std::vector<std::shared_ptr<RankClient>> dropped;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(clients_, [&](const auto& client) {
      if (snapshot.Find(v1::ROLE_INFERENCE_RANK, client.first)) return false;
      dropped.push_back(client.second);
      return true;
    });
  }
  for (const auto& client : dropped) client->Close();
}

void RankClients::CloseAll() {
  std::map<RankKey, std::shared_ptr<RankClient>> dropped;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(clients_);
  }
  for (const auto& [key, client] : dropped) client->Close();
  dropped.clear();
  std::vector<std::shared_ptr<grpc::Channel>> unused;
  std::unique_lock lock(open_streams_->mutex);
  open_streams_->ended.wait(lock, [this] { return open_streams_->count == 0; });
  unused.swap(open_streams_->unused_channels);
  lock.unlock();
}

void RankClients::Assign(const Route& route, uint64_t prompt_tokens) {
  std::lock_guard lock(mutex_);
  AssignedWork& inference = assigned_[KeyOf(route.inference)];
  ++inference.requests;
  inference.prompt_tokens += prompt_tokens;
  for (const v1::Identity& cache : route.caches) ++assigned_[KeyOf(cache)].requests;
}

void RankClients::Unassign(const Route& route, uint64_t prompt_tokens) {
  std::lock_guard lock(mutex_);
  Placement keys = KeysOf(route.caches);
  keys.push_back(KeyOf(route.inference));
  for (const RankKey& key : keys) {
    const auto it = assigned_.find(key);
    if (it == assigned_.end()) continue;
    if (key == KeyOf(route.inference)) it->second.prompt_tokens -= prompt_tokens;
    if (--it->second.requests == 0) assigned_.erase(it);
  }
}

void RankClients::PromptDone(const Route& route, uint64_t prompt_tokens) {
  std::lock_guard lock(mutex_);
  const auto it = assigned_.find(KeyOf(route.inference));
  if (it != assigned_.end()) it->second.prompt_tokens -= prompt_tokens;
}

AssignedCounts RankClients::Assigned() const {
  std::lock_guard lock(mutex_);
  return assigned_;
}

}  // namespace winnow
