#include "tools/bench/quality/hosted_cache_rank.h"

#include "common/rpc/identity.h"
#include "common/selection/selection_proto.h"
#include "inference_rank/links/shard_release.h"

namespace winnow {

absl::StatusOr<std::unique_ptr<HostedCacheRank>> HostedCacheRank::Create(const Options& options,
                                                                         const KernelTable& kernels,
                                                                         const v1::Fingerprint& fingerprint,
                                                                         Transport& transport) {
  std::unique_ptr<HostedCacheRank> host(new HostedCacheRank(options));
  CacheRank::Options rank;
  rank.identity = MakeIdentity("bench", v1::ROLE_CACHE_RANK, "hosted");
  rank.num_threads = options.threads;
  rank.projection = options.projection;
  rank.spin = options.waits.spin;
  rank.data_plane.memory_bytes = options.memory_bytes;
  rank.data_plane.selector.mass_interval = 1;
  rank.data_plane.selector.measure_exactly = true;
  TransportOptions transport_options;
  transport_options.incarnation = rank.identity.incarnation();
  host->rank_ = std::make_unique<CacheRank>(rank, &kernels, NewInprocTransport(transport_options));
  grpc::ServerBuilder builder;
  for (grpc::Service* service : host->rank_->services()) builder.RegisterService(service);
  host->server_ = builder.BuildAndStart();
  if (host->server_ == nullptr) return absl::InternalError("gRPC starts no server");
  host->rank_->Start();

  host->link_ = std::make_shared<CacheLink>("in this process", host->server_->InProcessChannel({}),
                                            [&transport] { transport.Wake(); });
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<Channel> channel, transport.NewChannel());
  v1::ExchangeRequest request;
  *request.mutable_identity() = MakeIdentity("bench", v1::ROLE_INFERENCE_RANK, "bench");
  *request.mutable_fingerprint() = fingerprint;
  request.set_transport(std::string(transport.capabilities().name));
  request.set_worker_address(channel->LocalAddress());
  host->link_->set_channel(std::move(channel));
  WINNOW_ASSIGN_OR_RETURN(const std::string peer, host->link_->Exchange(request, options.waits.timeout));
  WINNOW_RETURN_IF_ERROR(host->link_->channel()->Connect(peer));
  return host;
}

HostedCacheRank::~HostedCacheRank() {
  link_.reset();  // ends its Exchange stream
  if (rank_ != nullptr) rank_->Stop();
  if (server_ != nullptr) server_->Shutdown();
}

absl::Status HostedCacheRank::Open(Sequence& sequence, const KvLayout& layout) {
  v1::OpenSequenceRequest request;
  request.set_channel_id(link_->channel_id());
  request.set_sequence_id(sequence.sequence_id);
  *request.mutable_selection() = ToProto(sequence.spec);
  request.set_max_positions(sequence.max_positions);
  request.set_prompt_tokens(sequence.prompt_tokens());
  WINNOW_ASSIGN_OR_RETURN(const v1::OpenSequenceResponse opened, link_->Open(request, options_.waits.timeout));
  sequence.shards = {{.link = link_, .shard = WholeModel(layout), .attach_epoch = opened.attach_epoch()}};
  return absl::OkStatus();
}

absl::Status HostedCacheRank::Release(const Sequence& sequence) {
  const ShardRelease release(sequence.shards.front(), sequence.sequence_id, /*detach=*/false);
  if (release.Call(options_.waits.timeout)) return absl::OkStatus();
  return absl::DeadlineExceededError("the cache rank does not answer ReleaseSequence");
}

absl::StatusOr<uint64_t> HostedCacheRank::ScoredKeyBytes(uint64_t sequence_id) {
  return rank_->Call(std::chrono::system_clock::now() + options_.waits.timeout,
                     [sequence_id](DataPlane& data_plane) -> absl::StatusOr<uint64_t> {
                       const CachedSequence* sequence = data_plane.store().Find(sequence_id);
                       if (sequence == nullptr) return absl::NotFoundError("the sequence is gone");
                       return sequence->ScoredKeyBytes();
                     });
}

}  // namespace winnow
