#include "inference_rank/links/link_table.h"

#include <vector>

#include "common/rpc/channel.h"
#include "common/selection/selection_proto.h"
#include "common/selection/shard_spec.h"

namespace winnow {
namespace {

// A link is made whole, or not at all.
absl::Status ConnectChannel(CacheLink& link, std::string_view peer_address) {
  WINNOW_RETURN_IF_ERROR(link.channel()->Connect(peer_address));
  WINNOW_ASSIGN_OR_RETURN(const LinkProtection protection, link.protection());
  return link.channel()->TakeProtection(protection);
}

v1::PeerOffer OfferOf(const PeerStepLink& peer_link) {
  const PeerStepShape& shape = peer_link.shape();
  v1::PeerOffer offer;
  offer.set_address(peer_link.address());
  *offer.mutable_selection() = ToProto(shape.spec);
  offer.set_max_rows(shape.max_rows);
  offer.set_hidden_size(shape.hidden_size);
  offer.set_max_positions(shape.max_positions);
  offer.set_synthetic_model(shape.synthetic_model);
  *offer.mutable_shard() = ToProto(shape.shard);
  return offer;
}

}  // namespace

LinkTable::LinkTable(Options options, Transport& transport, RunOnEngine run_on_engine,
                     std::function<void()> wake_engine)
    : options_(std::move(options)),
      transport_(transport),
      run_on_engine_(std::move(run_on_engine)),
      wake_engine_(std::move(wake_engine)) {}

absl::StatusOr<std::shared_ptr<CacheLink>> LinkTable::Get(const v1::Identity& cache_rank, const KvShard& shard) {
  const Key key{cache_rank.address(), cache_rank.incarnation()};
  auto connecting = std::make_shared<Connecting>();
  {
    std::unique_lock lock(mutex_);
    while (true) {
      const auto found = links_.find(key);
      if (found != links_.end() && found->second->alive()) return found->second;
      const auto [other, is_first] = connecting_.try_emplace(key, connecting);
      if (is_first) break;
      const std::shared_ptr<Connecting> awaited = other->second;
      connected_.wait(lock, [&] { return awaited->done; });
      if (!awaited->failure.ok()) return awaited->failure;
    }
  }
  absl::StatusOr<std::shared_ptr<CacheLink>> link = Connect(cache_rank, shard);
  {
    const std::lock_guard lock(mutex_);
    connecting->done = true;
    connecting->failure = link.status();
    connecting_.erase(key);
  }
  connected_.notify_all();
  return link;
}

std::vector<std::shared_ptr<CacheLink>> LinkTable::Live() const {
  std::vector<std::shared_ptr<CacheLink>> live;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, link] : links_) {
    if (link->alive()) live.push_back(link);
  }
  return live;
}

absl::StatusOr<std::shared_ptr<CacheLink>> LinkTable::Connect(const v1::Identity& cache_rank, const KvShard& shard) {
  auto link = std::make_shared<CacheLink>(cache_rank.address(), NewChannel(cache_rank.address(), options_.credentials),
                                          wake_engine_);

  absl::Status peer_link_status;
  const absl::Status stopped = absl::UnavailableError("the inference rank is stopping");
  absl::Status status = stopped;
  std::string local_address;
  const bool made = run_on_engine_([&] {
    absl::StatusOr<std::unique_ptr<Channel>> channel = transport_.NewChannel();
    status = channel.status();
    if (!status.ok()) return;
    local_address = (*channel)->LocalAddress();
    link->set_channel(*std::move(channel));
    absl::StatusOr<std::unique_ptr<PeerStepLink>> peer_link = NewPeerLink(cache_rank, shard);
    peer_link_status = peer_link.status();
    if (peer_link.ok()) link->set_peer_link(*std::move(peer_link));
  });
  if (!made) return stopped;

  std::string peer_address;
  if (status.ok()) {
    v1::ExchangeRequest request;
    *request.mutable_identity() = options_.identity;
    *request.mutable_fingerprint() = options_.fingerprint;
    request.set_transport(std::string(transport_.capabilities().name));
    request.set_worker_address(local_address);
    request.set_data_plane_mode(static_cast<v1::DataPlaneMode>(transport_.data_plane_mode()));
    if (link->peer_link() != nullptr) *request.mutable_peer_link() = OfferOf(*link->peer_link());
    absl::StatusOr<std::string> answer = link->Exchange(request, options_.connect_timeout);
    // What a cache rank refuses an inference rank is no fault of the request that brought them together.
    status = answer.ok() ? absl::OkStatus() : absl::UnavailableError(answer.status().message());
    if (answer.ok()) peer_address = *std::move(answer);
  }
  run_on_engine_([&] {
    if (status.ok()) status = ConnectChannel(*link, peer_address);
    if (status.ok()) return FinishPeerLink(*link, peer_link_status);
    link->set_peer_link(nullptr);
    link->set_channel(nullptr);
  });
  WINNOW_RETURN_IF_ERROR(status);
  std::lock_guard lock(mutex_);
  std::shared_ptr<CacheLink>& entry = links_[{cache_rank.address(), cache_rank.incarnation()}];
  if (entry != nullptr) dead_.push_back(std::move(entry));
  entry = link;
  return link;
}

absl::StatusOr<std::unique_ptr<PeerStepLink>> LinkTable::NewPeerLink(const v1::Identity& cache_rank,
                                                                     const KvShard& shard) {
  if (options_.new_peer_link == nullptr) return absl::FailedPreconditionError("frames alone were asked for");
  if (transport_.data_plane_mode() == DataPlaneMode::kEncrypted) {
    return absl::FailedPreconditionError("--data-plane=encrypted: what GPUs store into each other cannot be encrypted");
  }
  {
    std::lock_guard lock(mutex_);
    if (distrusted_peers_.contains(cache_rank.incarnation())) {
      return absl::FailedPreconditionError("an earlier peer link to this cache rank has failed");
    }
  }
  return options_.new_peer_link(shard);
}

void LinkTable::FinishPeerLink(CacheLink& link, const absl::Status& offered) {
  absl::Status status = offered;
  if (status.ok()) {
    const v1::PeerAnswer& answer = link.peer_link_answer();
    status = answer.address().empty()
                 ? absl::FailedPreconditionError(answer.refusal().empty() ? "the cache rank knows no peer links"
                                                                          : answer.refusal())
                 : link.peer_link()->Connect(answer.address());
  }
  if (!status.ok()) link.set_peer_link(nullptr);
  if (options_.on_peer_link) options_.on_peer_link(link, status);
}

void LinkTable::DistrustPeer(const CacheLink& link, const absl::Status& why) {
  {
    std::lock_guard lock(mutex_);
    distrusted_peers_.insert(link.peer().incarnation());
  }
  if (options_.on_peer_link)
    options_.on_peer_link(link, absl::UnavailableError(absl::StrCat("the peer link has failed: ", why.message())));
}

CacheLink* LinkTable::Find(const Channel& channel) {
  std::lock_guard lock(mutex_);
  for (const auto& [key, link] : links_) {
    if (link->channel() == &channel) return link.get();
  }
  return nullptr;
}

void LinkTable::ReapDead(const std::function<void(CacheLink&)>& visit) {
  std::vector<std::shared_ptr<CacheLink>> gone;
  {
    std::lock_guard lock(mutex_);
    for (auto link = links_.begin(); link != links_.end();) {
      const bool dead = !link->second->alive() || !link->second->channel()->failed().ok();
      if (dead) {
        link->second->MarkDead();
        gone.push_back(link->second);
        dead_.push_back(std::move(link->second));
        link = links_.erase(link);
      } else {
        ++link;
      }
    }
  }
  for (const auto& link : gone) visit(*link);
  gone.clear();
  std::vector<std::shared_ptr<CacheLink>> unused;
  {
    std::lock_guard lock(mutex_);
    for (auto link = dead_.begin(); link != dead_.end();) {
      if (link->use_count() > 1) {
        ++link;
        continue;
      }
      retired_sent_bytes_ += (*link)->channel()->sent_bytes();
      retired_received_bytes_ += (*link)->channel()->received_bytes();
      unused.push_back(std::move(*link));
      link = dead_.erase(link);
    }
  }
}

uint64_t LinkTable::sent_bytes() const {
  std::lock_guard lock(mutex_);
  uint64_t bytes = retired_sent_bytes_;
  for (const auto& [key, link] : links_) bytes += link->channel()->sent_bytes();
  for (const auto& link : dead_) bytes += link->channel()->sent_bytes();
  return bytes;
}

uint64_t LinkTable::received_bytes() const {
  std::lock_guard lock(mutex_);
  uint64_t bytes = retired_received_bytes_;
  for (const auto& [key, link] : links_) bytes += link->channel()->received_bytes();
  for (const auto& link : dead_) bytes += link->channel()->received_bytes();
  return bytes;
}

void LinkTable::Clear() {
  std::map<std::pair<std::string, uint64_t>, std::shared_ptr<CacheLink>> links;
  std::vector<std::shared_ptr<CacheLink>> dead;
  {
    std::lock_guard lock(mutex_);
    links.swap(links_);
    dead.swap(dead_);
  }
}

}  // namespace winnow
