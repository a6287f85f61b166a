#pragma once
#include <ucp/api/ucp.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "common/base/status.h"
#include "transport/block_pool.h"

// Ownership of UCX's handles: contexts > context > worker > endpoint. Nothing outside these files sees a ucs_status_t.

namespace winnow {

class UcxContext {
 public:
  // `tls` as UCX_TLS; "" leaves the environment's in force.
  static absl::StatusOr<std::shared_ptr<UcxContext>> Create(const std::string& tls);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;
  ucp_context_h get() const { return context_; }

 private:
  explicit UcxContext(ucp_context_h context) : context_(context) {}
  ucp_context_h context_;
};

// The context for new workers. A context knows the network devices that there were when it was made, and makes no
// workers any more once one of them has gone, as those of containers do: then another takes its place, and workers of
// the first keep that. Thread-safe.
class UcxContexts {
 public:
  static absl::StatusOr<std::shared_ptr<UcxContexts>> Create(const std::string& tls);

  std::shared_ptr<UcxContext> current() const;
  // One that is not `stale`, which has lost a device.
  absl::StatusOr<std::shared_ptr<UcxContext>> Replace(const std::shared_ptr<UcxContext>& stale);

 private:
  explicit UcxContexts(std::string tls) : tls_(std::move(tls)) {}

  const std::string tls_;
  mutable std::mutex mutex_;
  std::shared_ptr<UcxContext> current_;
};

// One worker with at most one endpoint, and the blocks that UCX still reads. Every channel has a worker of its own: a
// peer that is killed while it writes into a shared-memory queue blocks that queue for good, and this way it is nobody
// else's queue; and destroying the worker is a way to let go of the link that asks nothing of the peer.
class UcxWorker {
 public:
  // All are called inside Progress only. A block holds a header and a payload, or a reference to one, as they came,
  // unchecked: whoever reaches the worker's address can send any.
  using ArrivalHandler = std::function<void(BlockPtr block)>;
  using ErrorHandler = std::function<void(absl::Status status)>;

  // `pool`: where arriving frames are put. `on_error`: the link has broken; `on_no_frame`: a message is none.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(UcxContexts& contexts, std::shared_ptr<BlockPool> pool,
                                                           ArrivalHandler on_arrival, ErrorHandler on_error,
                                                           ErrorHandler on_no_frame);
  // Takes back all blocks; does not wait for the peer.
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  const std::string& address() const { return address_; }
  // `watch_peer`: UCX reports a dead peer, at the price of shared memory, which cannot.
  absl::Status Connect(std::string_view peer_address, bool watch_peer);
  // Sends header and payload (or reference) as one message, in order; the block goes back to its pool when UCX is done
  // with it.
  absl::Status Send(BlockPtr block);
  // False when there was nothing to do.
  bool Progress() { return ucp_worker_progress(worker_) != 0; }
  // After true, event_fd() becomes readable when there is something to do. False: progress first.
  absl::StatusOr<bool> Arm();
  int event_fd() const { return event_fd_; }
  // UCX does not signal room in a full queue: while sends are under way, poll.
  bool sending() const { return !sending_.empty(); }

 private:
  UcxWorker(std::shared_ptr<UcxContext> context, std::shared_ptr<BlockPool> pool, ArrivalHandler on_arrival,
            ErrorHandler on_error, ErrorHandler on_no_frame);
  absl::Status Open();
  void Receive(const void* header, size_t header_bytes, const void* data, size_t data_bytes);

  const std::shared_ptr<UcxContext> context_;
  const std::shared_ptr<BlockPool> pool_;
  const ArrivalHandler on_arrival_;
  const ErrorHandler on_error_;
  const ErrorHandler on_no_frame_;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int event_fd_ = -1;
  std::string address_;
  std::unordered_set<Block*> sending_;
};

}  // namespace winnow
