#include "cache_rank/service/transport_service.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "cache_rank/service/cache_rank.h"
#include "cache_rank/service/channel_number.h"
#include "common/rpc/grpc_status.h"
#include "common/selection/selection_proto.h"
#include "common/selection/shard_spec.h"

namespace winnow {
namespace {

absl::StatusOr<PeerOffer> ParsePeerLink(const v1::PeerOffer& offer) {
  WINNOW_ASSIGN_OR_RETURN(SelectionSpec spec, FromProto(offer.selection()));
  return PeerOffer{.address = offer.address(),
                   .spec = std::move(spec),
                   .max_rows = static_cast<int>(std::min<uint32_t>(offer.max_rows(), 1 << 16)),
                   .hidden_size = static_cast<int>(std::min<uint32_t>(offer.hidden_size(), 1 << 24)),
                   .max_positions = offer.max_positions(),
                   .synthetic_model = offer.synthetic_model(),
                   .shard = offer.has_shard() ? FromProto(offer.shard()) : KvShard{}};
}

absl::StatusOr<CacheRank::ExchangeCall> ParseCall(const v1::ExchangeRequest& request) {
  CacheRank::ExchangeCall call{.peer = request.identity(),
                               .fingerprint = request.fingerprint(),
                               .transport = request.transport(),
                               .worker_address = request.worker_address(),
                               .data_plane_mode = static_cast<DataPlaneMode>(request.data_plane_mode()),
                               .peer_link = std::nullopt};
  if (!v1::DataPlaneMode_IsValid(request.data_plane_mode())) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown data_plane_mode ", static_cast<int>(request.data_plane_mode())));
  }
  if (request.has_peer_link()) {
    WINNOW_ASSIGN_OR_RETURN(call.peer_link, ParsePeerLink(request.peer_link()));
  }
  return call;
}

// Reacts to one stream. gRPC deletes nothing while operations are under way: the object holds itself alive until
// OnDone, and commands to the data plane hold it too, so an answer that comes late finds it.
class ExchangeServerStream final : public grpc::ServerBidiReactor<v1::ExchangeRequest, v1::ExchangeResponse>,
                                   public std::enable_shared_from_this<ExchangeServerStream> {
 public:
  explicit ExchangeServerStream(CacheRank* rank) : rank_(rank) {}

  void Start() {
    self_ = shared_from_this();
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    if (opened_) return End(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "Exchange takes one message"));
    opened_ = true;
    auto self = shared_from_this();
    absl::StatusOr<CacheRank::ExchangeCall> call = ParseCall(request_);
    if (!call.ok()) return End(ToGrpc(call.status()));
    rank_->Exchange(
        *std::move(call),
        [self](absl::StatusOr<CacheRank::ExchangeAnswer> answer) { self->OnExchanged(std::move(answer)); },
        [self](const absl::Status& reason) { self->End(ToGrpc(reason)); });
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    StartRead(&request_);  // stays pending until the peer ends the stream or dies
  }

  void OnCancel() override { End(grpc::Status::CANCELLED); }

  void OnDone() override { self_.reset(); }

 private:
  // Data-plane thread.
  void OnExchanged(absl::StatusOr<CacheRank::ExchangeAnswer> answer) {
    if (!answer.ok()) return End(ToGrpc(answer.status()));
    {
      std::lock_guard lock(mutex_);
      channel_id_ = answer->channel_id;
      if (!ended_) {
        *response_.mutable_identity() = rank_->options().identity;
        response_.set_worker_address(answer->worker_address);
        response_.set_channel_id(ChannelNumber(rank_->options().identity, answer->channel_id));
        response_.set_kernel_set(std::string(rank_->kernels().name));
        response_.mutable_protection()->set_level(static_cast<v1::LinkProtection::Level>(answer->protection.level));
        if (answer->protection.level != Protection::kPlain) {
          response_.mutable_protection()->set_session_key(answer->protection.key.bytes());
        }
        response_.set_num_threads(static_cast<uint32_t>(rank_->options().num_threads));
        if (request_.has_peer_link()) {
          v1::PeerAnswer& peer_link = *response_.mutable_peer_link();
          if (answer->peer_link_address.ok()) {
            peer_link.set_address(*answer->peer_link_address);
          } else {
            peer_link.set_refusal(std::string(answer->peer_link_address.status().message()));
          }
        }
        StartWrite(&response_);
        return;
      }
    }
    rank_->CloseChannel(answer->channel_id);  // the peer went away while the channel was being made
  }

  // Finishes the stream once and closes its channel. Any thread.
  void End(const grpc::Status& status) {
    uint32_t channel_id;
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(ended_, true)) return;
      channel_id = channel_id_;
    }
    if (channel_id != 0) rank_->CloseChannel(channel_id);
    Finish(status);
  }

  CacheRank* const rank_;
  v1::ExchangeRequest request_;
  v1::ExchangeResponse response_;
  bool opened_ = false;  // read callbacks only
  std::shared_ptr<ExchangeServerStream> self_;
  std::mutex mutex_;
  // Guarded by mutex_.
  bool ended_ = false;
  uint32_t channel_id_ = 0;
};

}  // namespace

grpc::ServerBidiReactor<v1::ExchangeRequest, v1::ExchangeResponse>* TransportServiceImpl::Exchange(
    grpc::CallbackServerContext*) {
  auto stream = std::make_shared<ExchangeServerStream>(rank_);
  stream->Start();
  return stream.get();
}

}  // namespace winnow
