#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "cache_rank/replica/replica_intake.h"
#include "cache_rank/step/data_plane.h"
#include "tests/fuzz/cache_rank/call_reader.h"
#include "tests/fuzz/cache_rank/stored_rows.h"

namespace winnow::fuzz {

// A cache rank's data plane with what reaches it from outside: the calls of its services, frames of inference ranks
// over real channels, what other cache ranks feed, and time. Each call is made with what a correct peer would say, or
// nearly that. After each, what was refused has changed nothing, nobody's rows but the caller's have changed, and all
// work ends; in the end rows are those that were sent, and nothing is left.
class FuzzedCacheRank {
 public:
  explicit FuzzedCacheRank(CallReader& in);
  ~FuzzedCacheRank();

  // One call, drawn from the input.
  void Call();

 private:
  struct Link {
    uint32_t id = 0;  // of the data plane
    std::unique_ptr<Transport> transport;
    std::unique_ptr<Channel> channel;
    bool closed = false;  // by the cache rank
  };

  void OpenLink();
  void CloseLink();
  void OpenSequence();
  void Attach();
  void UndoAttach();
  void Fork();
  void ReleaseOrDetach();
  void PushPrefix();
  void Feed();
  void EndFeed();
  void PassTime();
  void FlipBit();

  void SendPrompt();
  void SendRange();
  void SendPromptQueries();
  void SendStep();
  void SendStepRows();
  void SendPrefixQueries();
  void SendTransferFailed();
  void SendAnything();

  SequenceStore& store() { return data_plane_->store(); }
  const KvLayout& layout() const { return shape_.layout; }
  Link* AnyLink();
  uint32_t AnyLinkId();
  uint64_t AnyId();
  const CachedSequence* AnySequence();
  // The link that the sequence is attached to, now and then another one; null: there is none.
  Link* LinkOf(const CachedSequence& sequence);
  SelectionSpec AnySpec(const KvShard& shard);
  KvShard AnyShard();
  SequenceStore::OpenOptions AnyOpening(uint64_t id);
  void SendLayer(Link& link, uint64_t plan, std::span<const wire::PlanRow> rows, int layer);
  bool SendRows(Link& link, const CachedSequence& sequence, int layer, uint32_t first, uint32_t count);
  void SendQueries(Link& link, const CachedSequence& sequence, int layer, uint32_t first, uint32_t count);

  // Which rows the frame or update at hand carries.
  uint8_t VariantOf(uint64_t id, uint32_t position) const;
  void AppendRow(uint64_t id, int layer, int head, uint32_t position, std::vector<std::byte>* payload) const;
  void AppendFloats(size_t count, std::vector<std::byte>* payload) const;
  void DrawVariant();

  // The frame is handled, and what is stored was changed by it alone.
  void Deliver(Link& link, const wire::FrameHeader& header, std::span<const std::byte> payload);
  // All that there is to do is done.
  void Work();
  void ForgetGone();
  v1::ReplicaState Feed(uint64_t feed, const v1::ReplicaUpdate& update);

  CallReader& in_;
  const ServedShape shape_;
  const KernelTable* const kernels_;
  const std::unique_ptr<Executor> executor_;
  CacheRankMetrics metrics_;
  const std::unique_ptr<Transport> transport_;
  std::unique_ptr<DataPlane> data_plane_;
  const ReplicaIntake intake_;
  StoredRows rows_;
  std::vector<std::unique_ptr<Link>> links_;
  std::map<uint64_t, int> prompts_;  // which prompt a sequence was opened with; -1: it shares none
  uint64_t next_plan_ = 1, next_call_ = 1;
  int variant_ = -1;       // of all rows of the frame at hand; -1: those that belong to the sequences
  bool strange_ = false;   // its queries are of what arithmetic likes least
  bool polluted_ = false;  // prompts may have been given other rows than belong to them
  bool damaged_ = false;   // bits were flipped
  std::chrono::steady_clock::time_point now_;
};

}  // namespace winnow::fuzz
