#include "cache_rank/service/cache_rank.h"

#include <utility>

#include "cache_rank/service/cache_service.h"
#include "cache_rank/service/replication_service.h"
#include "cache_rank/service/stored_spans.h"
#include "cache_rank/service/transport_service.h"
#include "common/base/check.h"
#include "common/rpc/channel.h"
#include "kernels/parallel_for.h"

namespace winnow {
namespace {

Replicator::Options ReplicatorOptions(const CacheRank::Options& options, ControlQueue* queue) {
  auto channels = options.channels;
  if (!channels) channels = [](const std::string& address) { return NewChannel(address); };
  return {.identity = options.identity,
          .channels = std::move(channels),
          .post = [queue](std::function<void()> command) { queue->Post(std::move(command)); }};
}

}  // namespace

CacheRank::CacheRank(const Options& options, const KernelTable* kernels, std::unique_ptr<Transport> transport)
    : options_(options),
      kernels_(kernels),
      queue_([transport = transport.get()] { transport->Wake(); }),
      transport_(std::move(transport)),
      executor_(kernels->new_executor(options.num_threads)),
      replicator_(ReplicatorOptions(options, &queue_), &metrics_),
      intake_(executor_.get(), &metrics_),
      spans_(std::make_unique<StoredSpans>(options.spans, options.data_plane.tiers.fast.memory_bytes > 0)) {
  transport_->UseThreads(ParallelForOn(*kernels, *executor_));
  services_.push_back(std::make_unique<CacheServiceImpl>(this));
  services_.push_back(std::make_unique<TransportServiceImpl>(this));
  auto replication = std::make_unique<ReplicationServiceImpl>(this);
  replication_service_ = replication.get();
  services_.push_back(std::move(replication));
}

CacheRank::~CacheRank() {
  Stop();
}

void CacheRank::Start() {
  WINNOW_CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void CacheRank::Stop() {
  stopping_.store(true);
  replication_service_->Stop();
  transport_->Wake();
  if (thread_.joinable()) thread_.join();
}

std::vector<grpc::Service*> CacheRank::services() const {
  std::vector<grpc::Service*> services;
  for (const auto& service : services_) services.push_back(service.get());
  return services;
}

v1::RankLoad CacheRank::Load() const {
  v1::RankLoad load;
  load.set_running_sequences(static_cast<uint32_t>(metrics_.active_sequences.get()));
  load.set_waiting_sequences(static_cast<uint32_t>(metrics_.detached_sequences.get()));
  const uint64_t total = metrics_.blocks_total.get() * metrics_.block_bytes.get();
  const uint64_t taken = (metrics_.blocks_used.get() + metrics_.blocks_reserved.get()) * metrics_.block_bytes.get();
  // Before the first Exchange the block size is not known.
  load.set_total_bytes(total > 0 ? total : options_.data_plane.memory_bytes);
  load.set_free_bytes(load.total_bytes() - std::min<uint64_t>(taken, load.total_bytes()));
  load.set_progress_count(progress_.load(std::memory_order_relaxed));
  return load;
}

v1::Fingerprint CacheRank::Fingerprint() const {
  return CacheRankFingerprint(nullptr, model_digest(), *kernels_);
}

std::string_view CacheRank::model_digest() const {
  return options_.projection == nullptr ? std::string_view() : options_.projection->model_digest();
}

void CacheRank::Exchange(ExchangeCall call, OnExchanged on_exchanged, OnClosed on_closed) {
  const bool posted = queue_.Post([=, this, call = std::move(call)] { on_exchanged(OpenChannel(call, on_closed)); });
  if (!posted) on_exchanged(absl::UnavailableError("the cache rank is stopping"));
}

void CacheRank::CloseChannel(uint32_t channel_id) {
  queue_.Post([this, channel_id] {
    if (data_plane_ != nullptr) data_plane_->CloseLink(channel_id, absl::CancelledError("the Exchange stream ended"));
  });
}

absl::Status CacheRank::ServeModel(const v1::Fingerprint& fingerprint) {
  WINNOW_RETURN_IF_ERROR(
      CheckFingerprint(fingerprint, data_plane_ == nullptr ? nullptr : &data_plane_->shape(), model_digest()));
  if (data_plane_ != nullptr) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(const ServedShape shape, ParseKvShape(fingerprint.kv_shape()));
  DataPlane::Options options = options_.data_plane;
  options.on_damage = [this, log = options_.data_plane.on_damage](uint64_t sequence_id, const std::string& what) {
    replicator_.Leave(sequence_id);
    if (log) log(sequence_id, what);
  };
  WINNOW_ASSIGN_OR_RETURN(
      data_plane_, DataPlane::Create(options, shape, kernels_, executor_.get(), &metrics_, options_.projection.get()));
  served_ = fingerprint;
  return absl::OkStatus();
}

absl::Status CacheRank::KeepReplica(std::chrono::system_clock::time_point deadline,
                                    const v1::KeepReplicaRequest& request) {
  return queue_.Call(deadline, [this, request]() -> absl::Status {
    return replicator_.Keep(request.sequence_id(), request.has_replica() ? &request.replica() : nullptr,
                            std::chrono::steady_clock::now());
  });
}

absl::StatusOr<v1::FeedResponse> CacheRank::TakeUpdates(uint64_t feed, const v1::FeedRequest& request) {
  const auto deadline = std::chrono::system_clock::now() + options_.call_timeout;
  // The command, and with it the request, may outlive a call that has run out of time.
  auto taken = std::make_shared<const v1::FeedRequest>(request);
  return queue_.Call(deadline, [this, feed, taken]() -> absl::StatusOr<v1::FeedResponse> {
    if (taken->has_fingerprint()) WINNOW_RETURN_IF_ERROR(ServeModel(taken->fingerprint()));
    if (data_plane_ == nullptr) return absl::InvalidArgumentError("the first request of a feed has a fingerprint");
    return intake_.Take(*data_plane_, feed, *taken);
  });
}

void CacheRank::EndFeed(uint64_t feed) {
  queue_.Post([this, feed] {
    if (data_plane_ != nullptr) data_plane_->store().EndFeed(feed, std::chrono::steady_clock::now());
  });
}

absl::StatusOr<CacheRank::ExchangeAnswer> CacheRank::OpenChannel(const ExchangeCall& call, OnClosed on_closed) {
  if (AbslSv(transport_->capabilities().name) != call.transport) {
    return absl::FailedPreconditionError(absl::StrCat("transport is ", call.transport, " at the caller and ",
                                                      AbslSv(transport_->capabilities().name), " at the cache rank"));
  }
  WINNOW_RETURN_IF_ERROR(ServeModel(call.fingerprint));
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<Channel> channel, transport_->NewChannel());
  WINNOW_RETURN_IF_ERROR(channel->Connect(call.worker_address));
  ExchangeAnswer answer;
  WINNOW_ASSIGN_OR_RETURN(answer.protection, channel->DecideProtection(call.data_plane_mode));
  answer.worker_address = channel->LocalAddress();
  answer.channel_id = data_plane_->OpenLink(call.peer.rank(), std::move(channel), std::move(on_closed));
  if (!call.peer_link.has_value()) return answer;
  if (answer.protection.level == Protection::kEncrypted) {
    answer.peer_link_address = absl::FailedPreconditionError(
        "the data plane of the cache rank is encrypted, and what GPUs store into each other cannot be");
  } else {
    answer.peer_link_address = data_plane_->OpenPeerLink(answer.channel_id, *call.peer_link);
  }
  return answer;
}

void CacheRank::Run() {
  using Clock = std::chrono::steady_clock;
  transport_->SetHandler([this](Channel& channel, ReceivedFrame frame) {
    if (data_plane_ != nullptr) data_plane_->HandleFrame(channel, frame);
  });
  Clock::time_point next_tick = Clock::now() + options_.tick;
  while (!stopping_.load(std::memory_order_relaxed)) {
    queue_.RunAll();
    const int frames = transport_->Progress();
    const bool worked = data_plane_ != nullptr && data_plane_->RunOnce();
    if (frames > 0 || worked) progress_.fetch_add(1, std::memory_order_relaxed);
    const Clock::time_point now = Clock::now();
    if (data_plane_ != nullptr) {
      replicator_.RunOnce(data_plane_->store(), served_, executor_.get(), /*busy=*/frames > 0 || worked, now);
    }
    if (now >= next_tick) {
      if (data_plane_ != nullptr) {
        data_plane_->Tick(now);
        replicator_.Tick(data_plane_->store(), now);
        spans_->Sweep(data_plane_->store());
      }
      progress_.fetch_add(1, std::memory_order_relaxed);
      next_tick = now + options_.tick;
    }
    if (frames > 0 || worked) continue;
    // Frames, Wake and returned window end the wait.
    transport_->Wait(std::chrono::duration_cast<std::chrono::microseconds>(next_tick - now), options_.spin);
  }
  replicator_.Stop();
  queue_.Close();
  data_plane_.reset();
}

}  // namespace winnow
