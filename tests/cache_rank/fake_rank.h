#pragma once
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/cache_rank/fake_sequence.h"
#include "tests/cache_rank/test_cluster.h"

namespace winnow::test {

// Rows that a rank keeps beside the selected ones, at the end of a sequence.
inline uint32_t Ring(const SelectionSpec& spec) {
  return wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens);
}

// The inference rank's end of the data plane, single-threaded with the cache rank. Every delta is checked as it
// arrives: bytes equal the stored rows, nothing that is resident is sent, local rows are in the ring, pool indices are
// within the grant.
class FakeRank {
 public:
  FakeRank(TestCluster* cluster, size_t window_bytes);
  ~FakeRank();

  uint32_t link() const { return link_; }
  // Opens a sequence and sends its prompt.
  FakeSequence* Prefill(uint64_t id, uint64_t seed, const SelectionSpec& spec, uint32_t prompt_tokens,
                        uint32_t max_positions = 400);
  // Takes over a sequence as it was on another rank, waits for the refill.
  FakeSequence* Attach(const FakeSequence& old, uint32_t max_restart = UINT32_MAX);
  FakeSequence* Fork(const FakeSequence& source, uint64_t id);

  // One decode step of these sequences in one plan; stops after `layers` layers when that is given. False when deltas
  // did not come.
  bool Decode(const std::vector<FakeSequence*>& rows, int layers = -1);
  // The parts of it.
  void SendPlan(const std::vector<FakeSequence*>& rows);
  void SendLayer(int layer, bool with_queries = true);
  bool DeltasComplete(int layer) const;
  bool VerificationsComplete(int layer) const;
  void FinishPlan();

  // Sends a frame whose header is the caller's.
  void Send(const wire::FrameHeader& header, const std::vector<std::byte>& payload);
  int Progress() { return transport_->Progress(); }
  Channel& channel() { return *channel_; }

  std::vector<std::pair<uint64_t, uint32_t>> fenced;         // (sequence, current epoch)
  std::vector<std::pair<uint64_t, uint32_t>> failed;         // (sequence, layer) of kTransferFailed
  std::vector<std::pair<uint64_t, bool>> batch_row_answers;  // (sequence, granted)
  std::map<uint64_t, uint32_t> watermarks;
  std::map<uint64_t, uint64_t> working_set_rows;  // as reported last
  uint64_t fast_rows_bytes = 0;                   // likewise
  std::vector<std::string> errors;
  std::string Errors() const;  // all of them
  // While set, frames of refills are not looked at but kept, as of sequences that the peer does not know yet.
  bool keeps_refills = false;
  std::vector<ReceivedFrame> kept_refills;
  struct PrefixStates {
    wire::FrameHeader header;
    std::vector<float> states;
  };
  std::vector<PrefixStates> prefix_states;  // as they came
  uint64_t delta_frames = 0;
  size_t largest_delta = 0;

 private:
  void OnFrame(const ReceivedFrame& frame);
  void OnDelta(const ReceivedFrame& frame);
  void OnPartial(const ReceivedFrame& frame);
  void OnPrefetch(const ReceivedFrame& frame);
  void OnRefill(const ReceivedFrame& frame);
  struct PendingSelection {
    std::vector<uint32_t> pool_indices;
    std::vector<QueryHeadMask> members;
  };
  void TakeSelection(FakeSequence& sequence, int layer, int head, const PendingSelection& selection);
  void Expect(bool condition, const std::string& what) {
    if (!condition) errors.push_back(what);
  }
  FakeSequence::Row Row(FakeSequence& sequence, int layer, int head, uint32_t position);

  TestCluster* const cluster_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Channel> channel_;
  uint32_t link_ = 0;
  std::map<uint64_t, std::unique_ptr<FakeSequence>> sequences_;
  // The plan under way.
  uint64_t plan_ = 0;
  std::vector<FakeSequence*> rows_;
  std::map<std::pair<int, int>, int> missing_;                     // (layer, row) -> heads whose delta is not complete
  std::map<std::tuple<int, int, int>, PendingSelection> pending_;  // of entries that came in part
};

}  // namespace winnow::test
