#include "cache_rank/service/cache_rank.h"

#include <utility>

#include "cache_rank/service/cache_service.h"
#include "cache_rank/service/stored_spans.h"
#include "cache_rank/service/transport_service.h"
#include "common/base/check.h"

namespace winnow {

CacheRank::CacheRank(const Options& options, const KernelTable* kernels, std::unique_ptr<Transport> transport)
    : options_(options),
      kernels_(kernels),
      queue_([transport = transport.get()] { transport->Wake(); }),
      transport_(std::move(transport)),
      executor_(kernels->new_executor(options.num_threads)),
      spans_(std::make_unique<StoredSpans>(options.spans, options.data_plane.tiers.fast.memory_bytes > 0)) {
  services_.push_back(std::make_unique<CacheServiceImpl>(this));
  services_.push_back(std::make_unique<TransportServiceImpl>(this));
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

absl::StatusOr<CacheRank::ExchangeAnswer> CacheRank::OpenChannel(const ExchangeCall& call, OnClosed on_closed) {
  if (AbslSv(transport_->capabilities().name) != call.transport) {
    return absl::FailedPreconditionError(absl::StrCat("transport is ", call.transport, " at the caller and ",
                                                      AbslSv(transport_->capabilities().name), " at the cache rank"));
  }
  WINNOW_RETURN_IF_ERROR(
      CheckFingerprint(call.fingerprint, data_plane_ == nullptr ? nullptr : &data_plane_->shape(), model_digest()));
  if (data_plane_ == nullptr) {
    WINNOW_ASSIGN_OR_RETURN(const ServedShape shape, ParseKvShape(call.fingerprint.kv_shape()));
    WINNOW_ASSIGN_OR_RETURN(data_plane_, DataPlane::Create(options_.data_plane, shape, kernels_, executor_.get(),
                                                           &metrics_, options_.projection.get()));
  }
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<Channel> channel, transport_->NewChannel());
  WINNOW_RETURN_IF_ERROR(channel->Connect(call.worker_address));
  ExchangeAnswer answer;
  WINNOW_ASSIGN_OR_RETURN(answer.protection, channel->DecideProtection(call.data_plane_mode));
  answer.worker_address = channel->LocalAddress();
  answer.channel_id = data_plane_->OpenLink(call.peer.rank(), std::move(channel), std::move(on_closed));
  if (!call.lane.has_value()) return answer;
  if (answer.protection.level == Protection::kEncrypted) {
    answer.lane_address = absl::FailedPreconditionError(
        "the data plane of the cache rank is encrypted, and what GPUs store into each other cannot be");
  } else {
    answer.lane_address = data_plane_->OpenLane(answer.channel_id, *call.lane);
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
    if (now >= next_tick) {
      if (data_plane_ != nullptr) {
        data_plane_->Tick(now);
        spans_->Sweep(data_plane_->store());
      }
      progress_.fetch_add(1, std::memory_order_relaxed);
      next_tick = now + options_.tick;
    }
    if (frames > 0 || worked) continue;
    // Frames, Wake and returned window end the wait.
    transport_->Wait(std::chrono::duration_cast<std::chrono::microseconds>(next_tick - now), options_.spin);
  }
  queue_.Close();
  data_plane_.reset();
}

}  // namespace winnow
