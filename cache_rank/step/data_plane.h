#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cache_rank/metrics.h"
#include "cache_rank/select/host/served_shape.h"
#include "cache_rank/step/damage_response.h"
#include "cache_rank/step/frame_handler.h"
#include "cache_rank/step/prefetcher.h"
#include "cache_rank/step/prefix_attender.h"
#include "cache_rank/step/selector.h"
#include "cache_rank/store/kv_block_pool.h"
#include "cache_rank/store/scrubber.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/device_peer_link.h"
#include "cache_rank/stream/inference_link.h"
#include "cache_rank/stream/streamer.h"
#include "transport/transport.h"

namespace winnow {

// What an inference rank asks for with a sequence that it attaches.
struct AttachOptions {
  KvShard shard = {};           // that the caller expects; num_layers 0: all of the sequence
  bool wants_all_rows = false;  // and not those alone that a working set begins with
  // As SequenceStore::Attach has them.
  uint64_t call = 0;
  std::optional<std::string> prefix_salt = {};
  uint64_t state_bytes = 0;
};

// All state of a cache rank for one model shape: blocks, sequences, links, and the parts that work on them. One thread
// calls everything here; it alternates between the transport's Progress (which calls HandleFrame), RunOnce and Tick.
class DataPlane {
 public:
  struct Options {
    size_t memory_bytes = size_t{1} << 30;
    // Of the fast tier, beside memory_bytes; 0: there is one tier.
    RowTiers::Options tiers = {};
    std::chrono::milliseconds detach_ttl{60000};
    // Most memory for prefixes that no sequence uses; they give way to sequences. 0: prefixes are not kept.
    size_t idle_prefix_bytes = size_t{1} << 62;
    Streamer::Options streamer = {};
    Selector::Options selector = {};
    PrefixAttender::Options attender = {};
    // Makes what selects beside the executor for the model that is served; null: nothing does.
    std::function<absl::StatusOr<std::unique_ptr<BatchSelector>>(const ServedShape&)> new_batch_selector = nullptr;
    // Decode steps between two GPUs; null: there are none.
    std::shared_ptr<DevicePeerLinks> peer_links = nullptr;
    // The peer link to that inference rank has ended, and not with the cache rank. Data-plane thread.
    std::function<void(const std::string& rank, const absl::Status& why)> on_peer_link_ended = nullptr;
    // That are read to find damage before somebody needs them; 0: none are.
    uint64_t scrub_bytes_per_s = 0;
    // Told of each sequence that is given up for a damaged row, and of which row. Data-plane thread.
    DamageResponse::OnDamage on_damage = nullptr;
  };

  // The executor, the metrics and the projection must outlive it. `projection` may be null: then sequences that ask for
  // projection on the cache rank are refused. FAILED_PRECONDITION when it is of a model of another shape.
  static absl::StatusOr<std::unique_ptr<DataPlane>> Create(const Options& options, const ServedShape& shape,
                                                           const KernelTable* kernels, Executor* executor,
                                                           CacheRankMetrics* metrics,
                                                           const QueryProjection* projection = nullptr);
  ~DataPlane();

  const ServedShape& shape() const { return shape_; }
  const KvBlockPool& blocks() const { return *pool_; }
  const RowTiers* tiers() const { return pool_->tiers(); }  // null: one tier
  const SequenceStore& store() const { return store_; }
  SequenceStore& store() { return store_; }

  // Takes over a connected channel. `on_closed` is called once, from Tick or CloseLink, when the link ends for a reason
  // of this side.
  uint32_t OpenLink(std::string rank, std::unique_ptr<Channel> channel,
                    std::function<void(const absl::Status&)> on_closed);
  // Opens the link's way from GPU to GPU; returns its address. FAILED_PRECONDITION says why there is none.
  absl::StatusOr<std::string> OpenPeerLink(uint32_t link_id, const PeerOffer& offer);
  // Closes the channel and detaches its sequences. Idempotent. Not inside Progress.
  void CloseLink(uint32_t link_id, const absl::Status& reason);

  // CacheService. NOT_FOUND when there is no such channel, FAILED_PRECONDITION when the specification needs weights
  // that this rank has not loaded.
  struct Opened {
    uint32_t attach_epoch = 0;
    uint32_t cached_tokens = 0;  // positions below are there; their rows follow as Refill frames
  };
  absl::StatusOr<Opened> OpenSequence(uint32_t link_id, const SequenceStore::OpenOptions& options);
  // A replica that `feed` fills, with the refusals of OpenSequence. One of this number that is there already begins
  // anew, unless the opening could not be served whatever room there is.
  absl::StatusOr<CachedSequence*> OpenReplica(uint64_t feed, const SequenceStore::OpenOptions& options);
  struct Attached {
    uint32_t attach_epoch = 0;
    uint32_t restart_position = 0;
    uint32_t cached_tokens = 0;  // of a restart within the prompt: positions below it that the prefix cache had
    SequenceJournal journal;
  };
  // Sends rows of layers of the model, which the sequence has. OUT_OF_RANGE when it has not.
  absl::Status PushPrefix(uint32_t link_id, uint64_t sequence_id, uint32_t attach_epoch, const PrefixRows& rows);
  // FAILED_PRECONDITION when another part of the sequence is here than is expected. Refill frames follow, unless it is
  // the prompt that is gone on with: the caller asks for its rows (PushPrefix).
  absl::StatusOr<Attached> AttachSequence(uint32_t link_id, uint64_t sequence_id, uint32_t max_restart_position,
                                          const AttachOptions& options = {});
  // Whatever the call did ends with the channel, so that there is nothing to undo where that is not open.
  absl::Status UndoAttach(uint32_t link_id, uint64_t sequence_id, uint64_t call);
  // The fork's working set is the caller's to fill: it sends no Refill.
  struct Forked {
    uint32_t attach_epoch = 0;
    uint32_t position = 0;
  };
  absl::StatusOr<Forked> ForkSequence(uint32_t link_id, uint64_t source_id, uint64_t sequence_id,
                                      uint32_t max_positions);
  absl::Status ReleaseSequence(uint64_t sequence_id, uint32_t attach_epoch);
  absl::Status DetachSequence(uint64_t sequence_id, uint32_t attach_epoch);

  void HandleFrame(Channel& channel, const ReceivedFrame& frame);
  // One batch of selection work and whatever the windows admit. False when there was nothing to do.
  bool RunOnce();
  // Closes failed links and frees sequences whose TTL has run out. Not inside Progress.
  void Tick(std::chrono::steady_clock::time_point now);
  // Some link could not post for want of window.
  bool HasBacklog() const;

 private:
  DataPlane(const Options& options, const ServedShape& shape, std::unique_ptr<KvBlockPool> pool,
            const KernelTable* kernels, Executor* executor, CacheRankMetrics* metrics,
            const QueryProjection* projection, std::unique_ptr<BatchSelector> batch_selector);
  absl::StatusOr<InferenceLink*> FindLink(uint32_t link_id);
  // Whether sequences of that kind can be served here at all.
  absl::Status CheckServable(const SequenceStore::OpenOptions& options) const;
  // Waits for the rows that the link has under way from GPU to GPU: they belong to its sequences still.
  void TakeRowsUnderWay(uint32_t link_id);
  // A sequence of this number is gone or begins anew.
  void ForgetOnDevices(uint64_t sequence_id);
  bool RunPeerLinks();
  // A batch of selections, or a piece of attention to a prefix.
  bool Select();
  // What was found damaged is given up before anything else is done with it.
  void GiveUpDamaged();

  // Constant after construction.
  const ServedShape shape_;
  const QueryProjection* const projection_;
  CacheRankMetrics* const metrics_;

  const std::unique_ptr<KvBlockPool> pool_;
  const std::unique_ptr<BatchSelector> batch_selector_;  // may be null
  const std::shared_ptr<DevicePeerLinks> peer_links_;    // may be null
  const std::function<void(const std::string&, const absl::Status&)> on_peer_link_ended_;
  bool stopping_ = false;
  SequenceStore store_;
  Streamer streamer_;
  Selector selector_;
  Prefetcher prefetcher_;
  PrefixAttender attender_;
  Scrubber scrubber_;
  DamageResponse damage_;
  int selections_in_a_row_ = 0;  // since a piece of attention to a prefix
  FrameHandler frames_;
  InferenceLinks links_;
  uint32_t next_link_id_ = 1;
};

}  // namespace winnow
