#pragma once
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cache_rank/metrics.h"
#include "cache_rank/replica/replica_intake.h"
#include "cache_rank/replica/replicator.h"
#include "cache_rank/service/control_queue.h"
#include "cache_rank/step/data_plane.h"
#include "common/base/status.h"
#include "common/tracing/trace_span.h"
#include "kernels/kernel_table.h"
#include "transport/transport.h"
#include "winnow/v1/identity.pb.h"
#include "winnow/v1/membership.pb.h"

namespace winnow {

class ReplicationServiceImpl;
class StoredSpans;

// A cache rank: stores sequences, selects for them and streams rows. Runs one data-plane thread (and the executor's
// workers); gRPC handlers only hand it commands. Serves in a process of its own, or hosted by an inference process over
// an inproc transport.
class CacheRank {
 public:
  struct Options {
    v1::Identity identity;
    DataPlane::Options data_plane;
    // Of the one model that this rank then serves; null: it serves any, and projects no queries.
    std::shared_ptr<const QueryProjection> projection = nullptr;
    int num_threads = 1;  // for scoring, the data-plane thread included
    // With work of a plan on its way the thread polls, yielding, this long before it sleeps: a shorter time costs a
    // wake-up per layer, a longer one burns the core for so long after the last frame.
    std::chrono::microseconds spin{200};
    std::chrono::milliseconds tick{50};             // of reclaiming and of looking for failed channels
    std::chrono::milliseconds call_timeout{10000};  // for calls whose client set no deadline
    SpanSink* spans = nullptr;                      // of traced sequences; null: none are traced
    // To cache ranks that hold replicas; absent: NewChannel, not encrypted.
    std::function<std::shared_ptr<grpc::Channel>(const std::string& address)> channels = nullptr;
  };

  // What a caller of Exchange says of its end of the channel.
  struct ExchangeCall {
    v1::Identity peer;
    v1::Fingerprint fingerprint;
    std::string transport;
    std::string worker_address;
    DataPlaneMode data_plane_mode = DataPlaneMode::kAuto;
    std::optional<PeerOffer> peer_link;
  };
  // What Exchange needs; implemented by its stream. All callbacks come from the data-plane thread.
  struct ExchangeAnswer {
    uint32_t channel_id = 0;
    std::string worker_address;
    LinkProtection protection;
    // Where a peer link was offered: its address here, or why there is none.
    absl::StatusOr<std::string> peer_link_address = absl::FailedPreconditionError("no peer link was offered");
  };
  using OnExchanged = std::function<void(absl::StatusOr<ExchangeAnswer>)>;
  using OnClosed = std::function<void(const absl::Status&)>;

  CacheRank(const Options& options, const KernelTable* kernels, std::unique_ptr<Transport> transport);
  ~CacheRank();

  // Starts the data-plane thread. Once.
  void Start();
  // Closes all channels (their Exchange streams end) and joins the thread. Idempotent; before the gRPC server shuts
  // down, or its streams keep that from ending.
  void Stop();

  // CacheService, TransportService and ReplicationService, to be registered at a server that is shut down before this
  // object goes.
  std::vector<grpc::Service*> services() const;

  // Any thread.
  const CacheRankMetrics& metrics() const { return metrics_; }
  Timeline& timeline() { return metrics_.timeline; }
  v1::RankLoad Load() const;
  v1::Fingerprint Fingerprint() const;
  const Options& options() const { return options_; }
  const KernelTable& kernels() const { return *kernels_; }
  StoredSpans& spans() { return *spans_; }

  // For the services: any thread. Commands get the data plane, null before the first Exchange.
  void Exchange(ExchangeCall call, OnExchanged on_exchanged, OnClosed on_closed);
  void CloseChannel(uint32_t channel_id);
  absl::Status KeepReplica(std::chrono::system_clock::time_point deadline, const v1::KeepReplicaRequest& request);
  // A stream that feeds replicas: its number, what it brings, and its end.
  uint64_t BeginFeed() { return next_feed_.fetch_add(1); }
  absl::StatusOr<v1::FeedResponse> TakeUpdates(uint64_t feed, const v1::FeedRequest& request);
  void EndFeed(uint64_t feed);
  template <typename Command>  // StatusOr<T> command(DataPlane&)
  auto Call(std::chrono::system_clock::time_point deadline, Command command) {
    using Result = decltype(command(std::declval<DataPlane&>()));
    return queue_.Call(deadline, [this, command = std::move(command)]() mutable -> Result {
      if (data_plane_ == nullptr) return absl::NotFoundError("no channel is open");
      return command(*data_plane_);
    });
  }

 private:
  std::string_view model_digest() const;
  void Run();
  // Makes the data plane for that model, or checks that it is for it.
  absl::Status ServeModel(const v1::Fingerprint& fingerprint);
  absl::StatusOr<ExchangeAnswer> OpenChannel(const ExchangeCall& call, OnClosed on_closed);

  // Constant after construction.
  const Options options_;
  const KernelTable* const kernels_;

  // Any thread.
  CacheRankMetrics metrics_;
  ControlQueue queue_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> progress_{0};
  std::atomic<uint64_t> next_feed_{1};

  // Data-plane thread, between Start and Stop.
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<DataPlane> data_plane_;  // from the first Exchange or feed on; destroyed before the transport
  v1::Fingerprint served_;                 // of who came first
  Replicator replicator_;
  const ReplicaIntake intake_;

  const std::unique_ptr<StoredSpans> spans_;
  std::vector<std::unique_ptr<grpc::Service>> services_;
  ReplicationServiceImpl* replication_service_;  // one of them
  std::thread thread_;
};

}  // namespace winnow
