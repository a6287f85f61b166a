#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache_rank/metrics.h"
#include "cache_rank/replica/replica_feed.h"
#include "cache_rank/store/sequence_store.h"
#include "kernels/kernel_table.h"
#include "winnow/v1/identity.pb.h"

namespace winnow {

// Keeps the replicas of the sequences that this cache rank holds: copies rows below the watermark to the cache ranks
// that routers have named, behind the steps, which wait for none of it. A replica lags by what has been stored here and
// not been answered there.
//
// Rows of sequences whose replicas are nearly complete go first, with those of all others in one message; then one
// sequence at a time catches up, in the order in which routers asked, so that a cache rank that has just come is not
// flooded. A few messages are unanswered at a time: the network sets the pace. A fork's replica is opened once that of
// another sequence with its prompt is complete, whose blocks it then shares there.
//
// Data-plane thread, but for feeds, which answer through `post`.
class Replicator {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Options {
    v1::Identity identity;
    std::function<std::shared_ptr<grpc::Channel>(const std::string& address)> channels;
    // Runs a function on the data-plane thread; dropped when that has ended.
    std::function<void(std::function<void()>)> post;
    size_t message_bytes = size_t{1} << 20;            // of rows; at least one position
    int messages_ahead = 2;                            // unanswered, of each feed
    uint32_t near_tokens = 64;                         // a replica that lags by more is catching up
    std::chrono::milliseconds retry{1000};             // after a refusal, or the end of a feed
    std::chrono::milliseconds open_patience{600'000};  // for a sequence that has been named and is not here yet
    std::chrono::milliseconds busy_interval{5};        // between messages while steps are under way
  };
  static constexpr size_t kMaxCopies = 65536;

  Replicator(Options options, CacheRankMetrics* metrics) : options_(std::move(options)), metrics_(metrics) {}

  // The sequence is to have its replica there; nullptr: nowhere. RESOURCE_EXHAUSTED beyond kMaxCopies.
  absl::Status Keep(uint64_t sequence_id, const v1::Identity* replica, Time now);
  // The sequence was given up here for damaged rows: its replica is let go of, and stays for the request to go on with.
  void Leave(uint64_t sequence_id);
  // Sends what there is to send; nothing of a sequence whose rows are damaged. `busy`: steps have just been worked for.
  void RunOnce(SequenceStore& store, const v1::Fingerprint& fingerprint, Executor* team, bool busy, Time now);
  // Gauges, and copies of sequences that never came; now and then. Gauges are also set before the first message that
  // follows the loss of a replica, so that none that is made anew is ever taken for the complete one that it replaces.
  void Tick(const SequenceStore& store, Time now);
  // Ends all feeds.
  void Stop() { targets_.clear(); }

 private:
  enum class Phase { kWaiting, kOpening, kOpen };
  // A sequence that is to have a replica.
  struct Copy {
    uint64_t sequence_id = 0;
    std::string target;
    Phase phase = Phase::kWaiting;
    bool seen = false;    // it has been here
    uint32_t sent = 0;    // positions below are on their way, or there
    uint32_t stored = 0;  // positions below are there
    Time since;
    Time not_before;
  };
  struct Target {
    v1::Identity identity;
    uint64_t number = 0;  // of the feed
    std::unique_ptr<ReplicaFeed> feed;
    int unanswered = 0;
    Time next_message;  // while steps are under way
    Time last_used;
    std::vector<uint64_t> releases;  // replicas that are to go
    std::vector<uint64_t> detaches;  // and those that are to stay, fed no more
  };

  // One message's worth, of the copies of one target.
  v1::FeedRequest NextRequest(SequenceStore& store, const std::string& key, Target& target, Executor* team, Time now);
  // Returns how many bytes.
  size_t AddRows(CachedSequence& sequence, Copy& copy, size_t room_bytes, Executor* team, v1::FeedRequest* request);
  // True while another sequence with that prompt is on its way to the same place, with the prompt.
  bool WaitsForPrompt(const SequenceStore& store, const Copy& copy, const CachedSequence& sequence) const;
  void Connect(const std::string& key, Target& target);
  void OnAnswer(const std::string& key, uint64_t feed, const v1::FeedResponse& answer);
  void OnState(const std::string& key, const v1::ReplicaState& state, Time now);
  void OnEnd(const std::string& key, uint64_t feed);
  void Erase(const std::vector<uint64_t>& sequence_ids);
  void PublishGauges(const SequenceStore& store);

  const Options options_;
  CacheRankMetrics* const metrics_;
  std::vector<std::unique_ptr<Copy>> copies_;  // in the order in which they were asked for
  std::unordered_map<uint64_t, Copy*> by_id_;
  std::map<std::string, Target> targets_;  // by address and incarnation
  uint64_t next_feed_ = 1;
  bool replicas_lost_ = false;  // since gauges were set
};

}  // namespace winnow
