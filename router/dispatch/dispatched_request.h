#pragma once
#include <memory>
#include <mutex>
#include <optional>

#include "router/dispatch/dispatch_context.h"
#include "router/dispatch/loss.h"
#include "router/dispatch/token_journal.h"
#include "router/tasks/strand.h"
#include "router/tasks/strand_timer.h"

namespace winnow {

// One admitted request: the state machine that makes attempts until one finishes. Everything but the constructor,
// Begin, Abandon and the three posting functions runs on its strand.
//
//   Begin -> attempt -> (Finished | Failed for good | deadline) -> ended
//               |  ^
//  lost, handed v  |  a rank is there, back-off over
//  over
//              waiting -> (deadline | rank_wait over) -> ended
//
// What an attempt is made of stands in dispatched_request_attempt.cc. On a rank that drains, an attempt gives way to
// the next one while both run (dispatched_request_move.cc).
//
// One that is resumed begins by asking inference ranks, one after the other, for what they have of it: that is an
// attempt, too, which goes on with the answer of a rank that has it (dispatched_request_resume.cc).
class DispatchedRequest : public std::enable_shared_from_this<DispatchedRequest> {
 public:
  DispatchedRequest(std::shared_ptr<DispatchContext> context, TokenRequest request, TokenObserver* observer);

  // Makes the first attempt. No callback runs on the calling thread.
  void Begin();
  // The owner has lost interest: no callback runs after it returns, except the one it is called from.
  void Abandon(Leftovers leftovers);

  // Any thread.
  void PostMembershipChange();
  void PostFailure(absl::Status status);
  std::optional<ForkSource> fork_source() const;

 private:
  enum class Phase { kNew, kAttempt, kWaiting, kEnded };

  void SetPhase(Phase phase);
  void StartAttempt();
  bool CachesLive() const;
  // Makes the attempt on route_, which is set.
  void Attempt(bool attach, const DispatchContext::GroupRole& role, uint64_t queued_prompt_tokens);
  // Brings the events of the attempt under way to the strand.
  RankClient::Handler EventHandler();
  // With the sequence that the new one forks, where there is one.
  v1::DispatchRequest::Submit MakeSubmit(bool attach, const DispatchContext::GroupRole& role) const;
  DispatchContext::GroupRole RoleOf(uint64_t previous_id);
  // Nobody will attach to the sequence of the latest attempt, which has been lost.
  void GiveUpSequence();
  // Of requests whose KV is to have a replica (dispatched_request_replica.cc). Says where it is to be, once there is a
  // place for it; and again when that is gone.
  void PlaceReplica();
  // The cache rank of the sequence is lost: goes on with the replica. False where there is none, or nothing can be in
  // it.
  bool PromoteReplica();
  // The sequence is over, or given up: so are its replicas.
  void ForgetReplica();
  void CountReplica();
  // The attempt that begins goes on with what others have computed, or the source of a fork: under the same numerics?
  void NoteNumerics();
  // Where the sequence is, for fork_source.
  void NotePlace();
  void WaitForRank(const absl::Status& reason);
  void OnEvent(uint64_t attempt_id, const absl::StatusOr<v1::DispatchResponse>& event);
  void OnPromptTokens(const v1::DispatchResponse::PromptTokens& tokens);
  void OnTokens(const v1::DispatchResponse::TokenDelta& delta);
  void OnFinished(const v1::DispatchResponse::Finished& finished);
  // Some of the prompt's log probabilities are still to come: only an attempt that computes the prompt brings them.
  bool NeedsPromptTokens() const;
  // The attempt under way has brought its first token: if it goes on elsewhere, that is what it has cost.
  void NoteMoveCost();
  // What WaitForRank was told, and why ranks that are known do not serve.
  absl::Status NoRankStatus() const;
  // Tells the registry, now and then, that the ranks of the attempt work.
  void NoteProgress();
  void OnHandedOver();
  // The rank that handed the sequence over need not hold it any more.
  void ReleaseHolder();
  // How it was lost that this router has lost the stream to the rank.
  Loss LossOfStream(const absl::Status& status) const;
  void OnAttemptLost(const absl::Status& status, Loss loss);
  // The cache rank has no room for the sequence: waits, up to the deadline, for others to end.
  void OnNoCapacity(const absl::Status& status);
  // The cache rank could never hold the sequence: another one may.
  void OnTooSmall(const absl::Status& status);
  // Of a request that is traced. Attempts that are dropped without it have done what they were asked for.
  void EndAttemptSpan(const absl::Status& status);
  void DropAttempt();
  void Fail(const absl::Status& status, Leftovers leftovers = Leftovers::kFree);
  // Frees everything downstream, or leaves it to whoever resumes it. Idempotent.
  void End(Leftovers leftovers = Leftovers::kFree);
  void LetGo(RankClient& client, uint64_t attempt_id, Leftovers leftovers) const;
  // Makes an attempt elsewhere, to which the one under way gives way, if its rank drains and another one can take over.
  void MoveIfToDrain();
  // Of the attempt that gives way.
  void OnYieldingEvent(const absl::StatusOr<v1::DispatchResponse>& event);
  // The attempt under way has failed: the one that was to give way is the one under way again. False where that is
  // over.
  bool ReturnToYielding();
  // The attempt under way has the sequence.
  void OnMoved();
  void DropYielding();
  // Of a request that is resumed: asks the next inference rank that may have it; when all have been asked, waits for
  // the one that had it, or begins anew.
  void AskForAnswer();
  std::optional<Route> NextToAsk() const;
  void OnAnswer(const absl::StatusOr<v1::DispatchResponse>& event);
  void BeginAnew();
  void SetTimer(StrandTimer* timer, TimerQueue::Clock::time_point time, void (DispatchedRequest::*function)());
  void OnDeadline();
  void OnRankWaitOver();
  void OnBackoffOver();

  const std::shared_ptr<DispatchContext> context_;
  const TokenRequest request_;
  TokenObserver* const observer_;
  const std::chrono::system_clock::time_point deadline_;  // never later than clock arithmetic survives
  Strand strand_{Strand::Start::kHeld};

  // Touched on the strand, by Begin before it is released, and by Abandon after it is closed.
  Phase phase_ = Phase::kNew;
  TokenJournal journal_;
  uint64_t sequence_id_ = 0;
  std::optional<Route> route_;           // of the latest attempt
  std::vector<uint64_t> prefix_hashes_;  // from Begin on
  bool cached_prompt_known_ = false;
  size_t told_prompt_tokens_ = 1;  // with request_.prompt_top_logprobs; nothing stands before the first
  bool is_fork_ = false;           // the sequence begins as a fork of another one
  bool submitted_ = false;         // some attempt has had the chance to open the sequence
  bool sequence_lost_ = false;
  std::optional<v1::Identity> replica_;        // the cache rank that is to hold a copy of the sequence
  std::vector<v1::Identity> missed_replicas_;  // named before replica_, until they were lost or stopped
  bool replica_is_fed_ = false;                // as far as is known, the sequence's cache rank has what is to be copied
  TimerQueue::Clock::time_point next_placing_{};  // of a replica, to be tried
  bool counted_without_replica_ = false;
  bool prompt_stored_ = false;      // as far as is known, every row of the prompt is on the cache rank
  bool hand_over_pending_ = false;  // a rank has handed over, and no other has been asked to go on
  bool attempt_is_failover_ = false;
  std::string numerics_;               // of the latest attempt's rank
  bool not_identical_ = false;         // it went on under other numerics, or an attempt drew another token again
  uint64_t queued_prompt_tokens_ = 0;  // counted on the inference rank of the attempt under way
  std::optional<TimerQueue::Clock::time_point> prompt_end_;  // until the next token, after a prompt that is handed over
  std::shared_ptr<RankClient> holder_;                       // the rank that handed over, while it holds the sequence
  uint64_t holder_attempt_id_ = 0;
  // An attempt that goes on until the one under way, on another rank, has taken the sequence over.
  struct Yielding {
    Route route;
    uint64_t attempt_id = 0;
    std::shared_ptr<RankClient> client;  // null: it is over, as when the sequence has been taken from it
    bool not_identical = false;
    TimerQueue::Clock::time_point last_token;  // or since when it gives way
  };
  std::optional<Yielding> yielding_;
  TimerQueue::Clock::time_point next_move_{};  // to be tried
  uint64_t attempt_id_ = 0;                    // of the attempt under way, else 0
  bool attempt_has_tokens_ = false;
  bool attempt_attaches_ = false;
  bool move_noted_ = false;  // how long it took to go on there
  TimerQueue::Clock::time_point attempt_began_{};
  std::shared_ptr<RankClient> client_;  // of the attempt under way
  // Since the last new token: attempts that brought none, how the latest of them ended, ranks that ended while they had
  // the request, and attempts that live ranks failed with the sequence that is there now.
  uint32_t fruitless_attempts_ = 0;
  absl::Status last_loss_;
  uint32_t rank_deaths_ = 0;
  uint32_t damages_ = 0;  // of its stored rows, all in all
  uint32_t attach_failures_ = 0;
  TimerQueue::Clock::time_point next_progress_{};  // to be noted
  uint32_t capacity_waits_ = 0;
  Placement too_small_;            // cache ranks that could never hold the sequence,
  absl::Status too_small_status_;  // by their words
  absl::Status wait_reason_;
  bool fork_tried_ = false;  // of request_.fork
  bool asking_ = false;      // for an answer that is to be resumed
  std::vector<RankKey> asked_;
  StrandTimer resume_timer_;
  StrandTimer deadline_timer_;
  StrandTimer rank_wait_timer_;
  StrandTimer backoff_timer_;

  mutable std::mutex place_mutex_;
  std::optional<ForkSource> place_;  // guarded by place_mutex_
};

}  // namespace winnow
