#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "common/base/status.h"
#include "common/rpc/credentials.h"
#include "inference_rank/links/cache_link.h"
#include "transport/transport.h"
#include "winnow/v1/identity.pb.h"

namespace winnow {

// The links to cache ranks, made on first use. Get is for control threads (it blocks while that link is made, and no
// other one: a cache rank that is cut off holds up nobody who goes elsewhere); the rest is for the engine thread, which
// owns the channels.
class LinkTable {
 public:
  struct Options {
    v1::Identity identity;
    v1::Fingerprint fingerprint;
    Credentials credentials = {};
    std::chrono::milliseconds connect_timeout{5000};
    // Engine thread: this rank's end of a peer link for that part of sequences, to be offered with every link; null:
    // none is offered.
    std::function<absl::StatusOr<std::unique_ptr<PeerStepLink>>(const KvShard&)> new_peer_link = nullptr;
    // Engine thread: a link was made, and whether it has a peer link, or why not; later, why the peer link has failed.
    std::function<void(const CacheLink& link, const absl::Status& peer_link)> on_peer_link = nullptr;
  };
  // Runs a function on the engine thread and waits for it; false when the engine has stopped.
  using RunOnEngine = std::function<bool(std::function<void()>)>;

  LinkTable(Options options, Transport& transport, RunOnEngine run_on_engine, std::function<void()> wake_engine);

  // For a sequence of which the cache rank has `shard`: its peer link carries that of the first one.
  absl::StatusOr<std::shared_ptr<CacheLink>> Get(const v1::Identity& cache_rank, const KvShard& shard);

  // Those that have not ended. Any thread: the table keeps them until nobody else does.
  std::vector<std::shared_ptr<CacheLink>> Live() const;
  // Engine thread: the link of a channel, or null.
  CacheLink* Find(const Channel& channel);
  // Engine thread: calls `visit` for each link that has died, then forgets it; it is destroyed once no sequence holds
  // it.
  void ReapDead(const std::function<void(CacheLink&)>& visit);
  // Engine thread: links to this cache rank go without a peer link from now on.
  void DistrustPeer(const CacheLink& link, const absl::Status& why);
  uint64_t sent_bytes() const;
  uint64_t received_bytes() const;
  // Engine thread, at the end.
  void Clear();

 private:
  absl::StatusOr<std::shared_ptr<CacheLink>> Connect(const v1::Identity& cache_rank, const KvShard& shard);
  // Engine thread.
  absl::StatusOr<std::unique_ptr<PeerStepLink>> NewPeerLink(const v1::Identity& cache_rank, const KvShard& shard);
  void FinishPeerLink(CacheLink& link, const absl::Status& offered);

  const Options options_;
  Transport& transport_;
  const RunOnEngine run_on_engine_;
  const std::function<void()> wake_engine_;

  using Key = std::pair<std::string, uint64_t>;  // of a cache rank: its address and incarnation
  // A link that is being made. Who comes meanwhile waits for it, and shares its failure.
  struct Connecting {
    bool done = false;
    absl::Status failure;
  };

  mutable std::mutex mutex_;
  std::condition_variable connected_;
  // Guarded by mutex_.
  std::map<Key, std::shared_ptr<CacheLink>> links_;
  std::map<Key, std::shared_ptr<Connecting>> connecting_;
  std::vector<std::shared_ptr<CacheLink>> dead_;
  std::set<uint64_t> distrusted_peers_;  // incarnations
  uint64_t retired_sent_bytes_ = 0;
  uint64_t retired_received_bytes_ = 0;
};

}  // namespace winnow
