#pragma once
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/tracing/trace_context.h"
#include "inference_rank/links/staging_places.h"
#include "model/peer_step_link.h"
#include "transport/transport.h"
#include "winnow/v1/cache.grpc.pb.h"
#include "winnow/v1/transport.grpc.pb.h"

namespace winnow {

// The Exchange stream to one cache rank, held open as long as the link lives; its end means that the cache rank is
// gone.
class ExchangeStream;
class PeerStepGroup;

// One inference rank's link to one cache rank: the control calls (any thread, blocking) and the data-plane channel
// (engine thread only). Liveness comes from the Exchange stream: alive() turns false the moment it breaks. A cache rank
// that is cut off without a word breaks nothing; who waits for it says so, for LinkWatch.
class CacheLink {
 public:
  // `wake` is called, on any thread, when the link dies. The channel must be unconnected and outlived by its transport.
  CacheLink(std::string address, std::shared_ptr<grpc::Channel> grpc_channel, std::function<void()> wake);
  ~CacheLink();

  const std::string& address() const { return address_; }
  bool alive() const { return alive_.load(std::memory_order_acquire); }
  uint64_t channel_id() const { return channel_id_; }
  const v1::Identity& peer() const { return peer_; }
  // A number for an AttachSequence, greater than those before. Any thread.
  uint64_t NextCall() { return next_call_.fetch_add(1); }
  const std::shared_ptr<grpc::Channel>& grpc_channel() const { return grpc_channel_; }
  // Of the peer.
  const std::string& kernel_set() const { return kernel_set_; }
  int num_threads() const { return num_threads_; }

  // Control thread: exchanges addresses. Returns the peer's worker address, which the engine thread passes to
  // Channel::Connect.
  absl::StatusOr<std::string> Exchange(const v1::ExchangeRequest& request, std::chrono::milliseconds timeout);
  absl::StatusOr<v1::OpenSequenceResponse> Open(const v1::OpenSequenceRequest& request,
                                                std::chrono::milliseconds timeout, const TraceContext* trace = nullptr);
  absl::StatusOr<v1::AttachSequenceResponse> Attach(const v1::AttachSequenceRequest& request,
                                                    std::chrono::milliseconds timeout,
                                                    const TraceContext* trace = nullptr);
  absl::StatusOr<v1::ForkSequenceResponse> Fork(const v1::ForkSequenceRequest& request,
                                                std::chrono::milliseconds timeout, const TraceContext* trace = nullptr);
  absl::Status PushPrefix(const v1::PushPrefixRequest& request, std::chrono::milliseconds timeout);

  // Engine thread.
  void set_channel(std::unique_ptr<Channel> channel) { channel_ = std::move(channel); }
  Channel* channel() const { return channel_.get(); }
  // Any thread. Ends a decode step that waits for the peer, and calls that are under way.
  void MarkDead();

  // Somebody cannot go on before something comes from the cache rank. To be said again while that lasts. Any thread.
  void MarkAwaited() { awaited_.store(true, std::memory_order_relaxed); }
  // Whether that was said since the last such question, or a call is under way.
  bool TakeAwaited();
  // A frame has come, or an answer. Any thread.
  void NoteHeard() { num_heard_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t num_heard() const { return num_heard_.load(std::memory_order_relaxed); }
  // As of the newest watermark (wire::WatermarkEntry); wire::kOneTier before the first.
  uint64_t fast_rows_bytes() const { return fast_rows_bytes_; }
  void set_fast_rows_bytes(uint64_t bytes) { fast_rows_bytes_ = bytes; }
  // The peer link's answer of the Exchange.
  const v1::PeerAnswer& peer_link_answer() const { return peer_link_answer_; }
  // What the Exchange answered for Channel::TakeProtection.
  absl::StatusOr<LinkProtection> protection() const;
  void set_peer_link(std::unique_ptr<PeerStepLink> peer_link);
  PeerStepLink* peer_link() const { return peer_link_.get(); }  // null: there is none
  // Set once the peer link has had a sequence; null before.
  const std::shared_ptr<PeerStepGroup>& peer_group() const { return peer_group_; }
  void set_peer_group(std::shared_ptr<PeerStepGroup> group) { peer_group_ = std::move(group); }
  StagingPlaces& staging_places() { return staging_places_; }  // of the peer link

 private:
  friend class ExchangeStream;
  using CacheStub = v1::CacheService::StubInterface;

  // One call of the cache rank's service, whose name goes into errors. The link's end ends it.
  template <typename Response, typename Request>
  absl::StatusOr<Response> Ask(grpc::Status (CacheStub::*method)(grpc::ClientContext*, const Request&, Response*),
                               const Request& request, std::chrono::milliseconds timeout, const char* name,
                               const TraceContext* trace = nullptr);

  // Constant after construction.
  const std::string address_;
  const std::function<void()> wake_;
  const std::shared_ptr<grpc::Channel> grpc_channel_;
  std::unique_ptr<v1::CacheService::Stub> cache_stub_;
  std::unique_ptr<v1::TransportService::Stub> transport_stub_;
  // Set by Exchange, before the link is shared.
  uint64_t channel_id_ = 0;
  v1::Identity peer_;
  std::string kernel_set_;
  int num_threads_ = 1;
  v1::PeerAnswer peer_link_answer_;
  v1::LinkProtection protection_;
  std::unique_ptr<ExchangeStream> exchange_;
  // Engine thread.
  std::unique_ptr<Channel> channel_;
  uint64_t fast_rows_bytes_ = wire::kOneTier;
  std::unique_ptr<PeerStepLink> peer_link_;  // changed under peer_link_mutex_, for MarkDead
  std::mutex peer_link_mutex_;
  std::shared_ptr<PeerStepGroup> peer_group_;
  StagingPlaces staging_places_;
  std::mutex calls_mutex_;
  std::set<grpc::ClientContext*> calls_;  // guarded by calls_mutex_: those under way
  // Any thread.
  std::atomic<bool> alive_{true};
  std::atomic<bool> awaited_{false};
  std::atomic<uint64_t> num_heard_{0};
  std::atomic<uint64_t> next_call_{1};
};

}  // namespace winnow
