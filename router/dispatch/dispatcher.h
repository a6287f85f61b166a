#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "common/metrics/atomic_histogram.h"
#include "router/dispatch/loss.h"
#include "router/dispatch/rank_clients.h"
#include "router/dispatch/retry_pause.h"
#include "router/dispatch/token_stream.h"
#include "router/membership/registry.h"
#include "router/tasks/timer_queue.h"

namespace winnow {

struct DispatcherOptions {
  v1::Identity identity{};           // of the router
  uint32_t max_queue = 1024;         // requests under way at once, each sample counted; more are refused
  uint32_t max_damages = 3;          // of a request's stored rows: it is computed anew after each but the last
  uint32_t max_rank_deaths = 8;      // under one request since its last token: it may be what kills them
  uint32_t max_attach_failures = 4;  // in a row, by ranks that live: then the sequence is given up
  // How long an admitted request waits for a rank to come (back); while ranks are late it waits on.
  std::chrono::milliseconds rank_wait{30000};
  std::function<std::string()> why_no_rank{};   // what keeps ranks that are known from serving, if anything is known
  std::chrono::milliseconds resume_wait{3000};  // for the rank that had an answer which is resumed; then begun anew
  RetryPauses retry{};
  ShardRange shards{};    // of a sequence's KV
  uint32_t replicas = 1;  // of a sequence's KV, the first one included: 2 with one cache rank per sequence
  std::chrono::milliseconds slow_start{0};  // of a cache rank that has joined; 0: none
  RankClient::Options client{};
  std::chrono::milliseconds release_timeout{1000};  // of a call that frees a sequence on a cache rank
  RankClients::ChannelFactory channels{};           // absent: NewChannel, not encrypted
};

// Monotone counts, and two gauges.
struct DispatcherCounters {
  static constexpr std::array<double, 11> kHandOverBounds = {.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 5};

  std::atomic<int64_t> running{0};  // requests with an attempt under way
  std::atomic<int64_t> waiting{0};  // requests between attempts
  std::atomic<uint64_t> admitted{0};
  std::atomic<uint64_t> rejected{0};
  std::atomic<uint64_t> tokens{0};
  std::atomic<uint64_t> cached_prompt_tokens{0};
  std::atomic<uint64_t> failovers_reattach{0};   // attempts that took the sequence over from the cache rank
  std::atomic<uint64_t> failovers_recompute{0};  // attempts that prefilled again
  LossCounters lost_attempts{};                  // by how they were lost
  std::atomic<uint64_t> promotions{0};           // lost cache ranks whose part a replica took; reattach follows
  std::atomic<int64_t> without_replica{0};       // running requests that are to have one and have no place for it
  std::atomic<uint64_t> sequences_given_up{0};   // their requests have begun anew, or ended while no rank had them
  std::atomic<uint64_t> replayed_tokens{0};      // known tokens that an attempt sent again; dropped
  std::atomic<uint64_t> mismatched_tokens{0};    // of these, the ones that differ from what was delivered
  std::atomic<uint64_t> hand_overs{0};           // prompts that a rank for prefill has left to another rank
  // Of these: seconds from the end of a prompt on one rank to the next token, from another, both as the router sees
  // them.
  AtomicHistogram hand_over_seconds{kHandOverBounds};
  std::atomic<uint64_t> moved{0};  // requests that went on from a rank that drains to another one
  // Of these: seconds from the last token of the one rank to the first of the other, both as the router sees them.
  AtomicHistogram move_seconds{kHandOverBounds};
  std::atomic<uint64_t> resumed{0};            // outputs that a rank still had
  std::atomic<uint64_t> resumed_recompute{0};  // outputs that no rank had any more
  std::atomic<uint64_t> not_identical{0};      // requests that ended with SelectionStats.not_identical
};

// Sends requests to inference ranks and carries them over the loss of ranks. An attempt is one Submit to one inference
// rank. When it is lost, the next one attaches to the sequence if its cache rank lives and still has it, else it opens
// a new sequence; either way it is told the tokens that were generated, and the observer sees one gapless stream.
// Attempts are made, with growing pauses, until the request's deadline, unless ranks die under it again and again.
// Without a rank it waits for one; only a cluster that has never been complete refuses it at once.
//
// A rank that is there for prefill alone ends its attempt with HandedOver; the next attempt attaches on a rank that
// decodes. That is no failover, and the sequence stays with the first rank until the second one has sent a token, so
// that it is freed if the request ends in between.
//
// A request on a rank that drains goes on on another one as soon as its prompt is computed, if its KV is in reach of
// one that has a row free: by an attach, as after a loss, while the first rank goes on until the second one has taken
// the sequence from it. Whichever brings a token first is heard, so that there is no pause to wait for the second one,
// and if that fails, the first one goes on.
//
// Threads: callbacks come from gRPC's threads and the timer's, from a strand per request; a slow callback delays the
// other requests of its rank. Locks: one per object (dispatcher, clients, registry, strand, timers), none held while
// another object is called.
class Dispatcher final : public TokenGenerator {
 public:
  // `registry` and `timers` must outlive the dispatcher.
  Dispatcher(DispatcherOptions options, Registry* registry, TimerQueue* timers);
  // Requests that are still under way fail with UNAVAILABLE; their streams may be destroyed later.
  ~Dispatcher() override;

  absl::StatusOr<std::unique_ptr<TokenStream>> Start(TokenRequest request, TokenObserver* observer) override;

  void Free(const std::string& resume_key, const std::string& tenant) override;

  // Requests that come from now on are refused with `status`; those under way go on.
  void StopAdmitting(const absl::Status& status);
  // Requests under way end with `status`; returns when they have, though their observers may be told later.
  void FailAll(const absl::Status& status);
  size_t num_requests() const;
  // Requests that this router has on each rank now.
  AssignedCounts Assigned() const;

  // Of the longest sequence for which there would be room on the cache ranks if nothing else were there; 0: not known.
  uint32_t MostPositions() const;
  const DispatcherCounters& counters() const;

 private:
  std::shared_ptr<class DispatchContext> context_;
  std::unique_ptr<Registry::Subscription> subscription_;
};

}  // namespace winnow
