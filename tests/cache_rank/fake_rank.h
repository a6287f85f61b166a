#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cache_rank/data_plane.h"
#include "tests/cache_rank/reference.h"

namespace winnow::test {

class TestCluster;

// A sequence as an inference rank sees it. Rows and queries are functions of (seed, layer, head, position), so every
// byte that comes back can be checked, and sequences of one seed must be served alike.
struct FakeSequence {
  uint64_t id = 0;
  uint64_t seed = 0;
  uint32_t attach_epoch = 1;
  SelectionSpec spec;
  int group_size = 1;
  uint32_t prompt_tokens = 0;
  uint32_t max_positions = 400;
  uint32_t attach_position = 0;
  uint32_t next_position = 0;

  // Working set by [layer * num_kv_heads + head]: what was really received or computed here.
  using Row = std::vector<float>;
  struct List {
    std::map<uint32_t, Row> pool;                             // by pool index
    std::map<uint32_t, Row> ring;                             // by position
    std::set<uint32_t> attended;                              // pool indices of the newest selection
    std::map<std::pair<float, float>, uint32_t> position_of;  // of a row, by its first elements
  };
  std::vector<List> lists;
  std::set<uint32_t> refilled;  // positions that came in every layer; restart when done
  uint32_t refill_done_at = kNoPosition;

  // By position: [layer * num_kv_heads + head], of each as many lists as lists_per_head().
  std::map<uint32_t, std::vector<std::vector<uint32_t>>> selections;
  // By position: [layer * num_kv_heads + head] as reported in that position's entries.
  std::map<uint32_t, std::vector<float>> masses;
  std::set<std::pair<uint32_t, size_t>> bounded;  // (position, list) of those that are said to be lower bounds
  uint64_t streamed_rows = 0, local_rows = 0, prefetched_rows = 0;
  std::set<std::pair<uint32_t, size_t>> deltas;  // (position, list) that an entry came for

  uint32_t Anchor(uint32_t position) const { return AnchorPosition(spec, position, prompt_tokens); }
  uint32_t Window(uint32_t position) const { return WindowStart(spec, position, prompt_tokens); }
  bool Everything(size_t list, uint32_t position) const {
    return AttendsEverything(spec, list, position, prompt_tokens);
  }
  uint32_t Pool(size_t list) const { return PoolSlots(spec, list, max_positions, group_size); }
  int lists_per_head() const { return ListsPerKvHead(spec, group_size); }

  // Verdicts by position: [layer * num_kv_heads + head].
  struct Verdict {
    wire::PartialEntry entry;
    std::vector<float> o, lse;
    bool operator==(const Verdict& other) const {
      return entry.flags == other.entry.flags && entry.mass_before == other.entry.mass_before &&
             entry.mass_after == other.entry.mass_after && o == other.o && lse == other.lse;
    }
  };
  std::map<uint32_t, std::map<size_t, Verdict>> verdicts;
};

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
  bool VerdictsComplete(int layer) const;
  void FinishPlan();

  // Sends a frame whose header is the caller's.
  void Send(const wire::FrameHeader& header, const std::vector<std::byte>& payload);
  int Progress() { return transport_->Progress(); }
  Channel& channel() { return *channel_; }

  std::vector<std::pair<uint64_t, uint32_t>> fenced;  // (sequence, current epoch)
  std::vector<std::pair<uint64_t, uint32_t>> failed;  // (sequence, layer) of kTransferFailed
  std::map<uint64_t, uint32_t> watermarks;
  std::map<uint64_t, uint64_t> working_set_rows;  // as reported last
  uint64_t fast_rows_bytes = 0;                   // likewise
  std::vector<std::string> errors;
  // While set, frames of refills are not looked at but kept, as of sequences that the peer does not know yet.
  bool keeps_refills = false;
  std::vector<ReceivedFrame> kept_refills;
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

// A cache rank's data plane and the inproc transport it serves.
class TestCluster {
 public:
  struct Options {
    DataPlane::Options data_plane;
    int num_threads = 1;
    int lag = 1;  // the cache rank works once in so many rounds of progress
    const QueryProjection* projection = nullptr;
    // Replaces TruthPrediction in what inference ranks send.
    std::function<std::vector<float>(uint64_t seed, int layer, uint32_t position)> prediction = nullptr;
    // Multiplies what TruthRow gives for a position.
    std::function<float(uint32_t position)> row_scale = nullptr;
  };
  explicit TestCluster(const Options& options, int num_layers = 3);
  static DataPlane::Options SmallDataPlane() { return {.memory_bytes = size_t{32} << 20}; }

  std::unique_ptr<FakeRank> NewRank(size_t window_bytes = size_t{16} << 20) {
    return std::make_unique<FakeRank>(this, window_bytes);
  }
  // Lets both sides progress until the condition holds; false when it does not come true.
  bool PumpUntil(FakeRank& rank, const std::function<bool()>& condition);
  // Lets the cache rank alone do all that it can.
  void PumpCacheRank(int rounds = 200);

  // The truth: K and V of a row, and queries before RoPE.
  std::vector<float> TruthRow(uint64_t seed, int layer, int head, uint32_t position) const;
  std::vector<float> TruthQuery(uint64_t seed, int layer, uint32_t position) const;
  std::vector<float> TruthPrediction(uint64_t seed, int layer, uint32_t position) const;
  // Residual that enters a layer, [hidden_size].
  std::vector<float> TruthHidden(uint64_t seed, int layer, uint32_t position, int hidden_size) const;
  // What is wrong with Sel(position, layer, head) by brute force; empty when nothing is. Where query heads have lists
  // of their own, `head` is a query head here, and its query counts alone.
  std::string CheckSelection(const FakeSequence& sequence, uint32_t position, int layer, int head,
                             const std::vector<uint32_t>& selected) const;
  double Mass(const FakeSequence& sequence, uint32_t position, int layer, int head,
              const std::vector<uint32_t>& selected) const;
  // Importance of rows [0, position) to the real query of `position`, and its rotated form per query head of the group.
  Vector RealImportance(const FakeSequence& sequence, uint32_t position, int layer, int head) const;
  std::vector<Vector> RealQueries(const FakeSequence& sequence, uint32_t position, int layer, int head) const;

  const ServedShape shape;
  const KernelTable* const kernels;
  CacheRankMetrics metrics;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<DataPlane> data_plane;

 private:
  // Query heads that share a selected list.
  struct QueryHeads {
    int first, count;
  };
  QueryHeads HeadsOf(const FakeSequence& sequence, int head) const;
  std::vector<Vector> Queries(QueryHeads heads, const std::vector<float>& values, uint32_t rotate_to) const;
  std::vector<Vector> Keys(uint64_t seed, int layer, int head, uint32_t count) const;
  const int lag_;
  const int hidden_size_;
  const decltype(Options::prediction) prediction_;
  const decltype(Options::row_scale) row_scale_;

  friend class FakeRank;
};

}  // namespace winnow::test
