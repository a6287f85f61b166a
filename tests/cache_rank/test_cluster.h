#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cache_rank/step/data_plane.h"
#include "tests/cache_rank/fake_sequence.h"
#include "tests/cache_rank/reference.h"

namespace winnow::test {

class FakeRank;

// A cache rank's data plane, the inproc transport it serves, and what is right by brute force: rows, queries and
// selections are functions of seeds and positions.
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

  std::unique_ptr<FakeRank> NewRank(size_t window_bytes = size_t{16} << 20);
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
