#pragma once
#include <grpcpp/grpcpp.h>

#include <memory>

#include "cache_rank/service/cache_rank.h"
#include "common/base/status.h"
#include "inference_rank/links/cache_link.h"
#include "inference_rank/sequence/sequence.h"
#include "inference_rank/step/frame_writer.h"

namespace winnow {

// A cache rank in this process and the one link to it, as an inference rank of transport `inproc` has them, but without
// a listening server: control calls go through gRPC's in-process channel. It measures captured mass at every position.
class HostedCacheRank {
 public:
  struct Options {
    size_t memory_bytes = 0;
    int threads = 1;
    std::shared_ptr<const QueryProjection> projection = nullptr;  // for specifications that project there
    DataPlaneWaits waits;
  };

  // `transport` is the caller's end and outlives this object; `fingerprint` says what rows look like.
  static absl::StatusOr<std::unique_ptr<HostedCacheRank>> Create(const Options& options, const KernelTable& kernels,
                                                                 const v1::Fingerprint& fingerprint,
                                                                 Transport& transport);
  ~HostedCacheRank();

  const std::shared_ptr<CacheLink>& link() const { return link_; }
  // Opens the sequence and sets its link and epoch.
  absl::Status Open(Sequence& sequence, const KvLayout& layout);
  absl::Status Release(const Sequence& sequence);
  // Bytes of keys that the sequence's selections have read so far.
  absl::StatusOr<uint64_t> ScoredKeyBytes(uint64_t sequence_id);

 private:
  explicit HostedCacheRank(const Options& options) : options_(options) {}

  const Options options_;
  std::unique_ptr<CacheRank> rank_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<CacheLink> link_;
};

}  // namespace winnow
