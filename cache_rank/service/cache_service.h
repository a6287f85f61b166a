#pragma once
#include <cstdint>
#include <optional>

#include "common/tracing/trace_context.h"
#include "winnow/v1/cache.grpc.pb.h"

namespace winnow {

class CacheRank;
class DataPlane;

// The gRPC edge of the sequence store: unpack, hand over, answer.
class CacheServiceImpl final : public v1::CacheService::Service {
 public:
  explicit CacheServiceImpl(CacheRank* rank) : rank_(rank) {}

  grpc::Status OpenSequence(grpc::ServerContext* context, const v1::OpenSequenceRequest* request,
                            v1::OpenSequenceResponse* response) override;
  grpc::Status AttachSequence(grpc::ServerContext* context, const v1::AttachSequenceRequest* request,
                              v1::AttachSequenceResponse* response) override;
  grpc::Status PushPrefix(grpc::ServerContext* context, const v1::PushPrefixRequest* request,
                          v1::PushPrefixResponse* response) override;
  grpc::Status ForkSequence(grpc::ServerContext* context, const v1::ForkSequenceRequest* request,
                            v1::ForkSequenceResponse* response) override;
  grpc::Status ReleaseSequence(grpc::ServerContext* context, const v1::ReleaseSequenceRequest* request,
                               v1::ReleaseSequenceResponse* response) override;

 private:
  // Data-plane thread.
  void NoteAttached(const char* name, const std::optional<TraceContext>& trace, uint64_t start_unix_nanos,
                    const DataPlane& data_plane, uint64_t sequence_id);

  CacheRank* const rank_;
};

}  // namespace winnow
