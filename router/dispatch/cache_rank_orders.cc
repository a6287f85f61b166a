#include "router/dispatch/cache_rank_orders.h"

#include <utility>

#include "common/rpc/grpc_status.h"
#include "winnow/v1/cache.grpc.pb.h"
#include "winnow/v1/replication.grpc.pb.h"

namespace winnow {

CacheRankOrders::CacheRankOrders(ChannelFactory channels, const Options& options)
    : channels_(std::move(channels)), options_(options), calls_(options.retries) {}

void CacheRankOrders::Release(uint64_t sequence_id, const v1::Identity& cache_rank) {
  calls_.Add(cache_rank.address(), [this, sequence_id, address = cache_rank.address()] {
    grpc::ClientContext context;
    SetTimeout(context, options_.call_timeout);
    v1::ReleaseSequenceRequest request;
    request.set_sequence_id(sequence_id);
    request.set_attach_epoch(0);  // of whoever held it last
    v1::ReleaseSequenceResponse response;
    return HasAnswer(v1::CacheService::NewStub(channels_(address))->ReleaseSequence(&context, request, &response));
  });
}

void CacheRankOrders::KeepReplica(uint64_t sequence_id, const v1::Identity& cache_rank, const v1::Identity& replica) {
  v1::KeepReplicaRequest request;
  *request.mutable_identity() = options_.identity;
  request.set_sequence_id(sequence_id);
  *request.mutable_replica() = replica;
  calls_.Add(cache_rank.address(), [this, request = std::move(request), address = cache_rank.address()] {
    grpc::ClientContext context;
    SetTimeout(context, options_.call_timeout);
    v1::KeepReplicaResponse response;
    return HasAnswer(v1::ReplicationService::NewStub(channels_(address))->KeepReplica(&context, request, &response));
  });
}

void CacheRankOrders::Stop() {
  calls_.Stop(RetriedCalls::AtStop::kDrop);
}

}  // namespace winnow
