#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "common/selection/head_profile.h"
#include "inference_rank/memory/prefill_arena.h"
#include "inference_rank/sequence/mass_summary.h"
#include "kernels/kernel_table.h"
#include "model/forward.h"

namespace winnow {

// What one query needs of the context: mean over the head group's query heads of its exact softmax.
struct QueryNeeds {
  double window_mass = 0;                                              // under sinks and recent window
  std::array<double, HeadProfile::kMasses.size()> tokens_needed = {};  // as in HeadProfile::Head
  std::array<double, HeadProfile::kRows.size()> mass_with_rows = {};   // likewise
};

// `softmax` [position + 1]: the group's mean softmax of `position` over all rows up to it.
QueryNeeds NeedsOf(std::span<const float> softmax, uint32_t sink_tokens, uint32_t recent_tokens);

// The KV side of a prefill that measures, at some positions of a text, what each (layer, kv head) attends to. Sums up
// over texts. One thread; the measuring itself runs on the executor.
class HeadProbe final : public PrefillKv {
 public:
  struct Options {
    uint32_t sink_tokens = 4;
    uint32_t recent_tokens = 64;
    uint32_t queries_per_text = 64;  // at most, evenly over what is measured of a text
  };

  HeadProbe(const Options& options, const KvLayout& layout, const Forward& forward, const KernelTable& kernels,
            Executor& executor);

  // Before the chunks of a text of `tokens` tokens that is measured from `measured_from` on. RESOURCE_EXHAUSTED when
  // its KV cannot be mapped.
  absl::Status BeginText(uint32_t tokens, uint32_t measured_from);
  void BeginChunk(uint32_t first, uint32_t count);
  Rows Publish(int layer, const std::byte* kv_rows, const float* q_pre_rope) override;

  // The positions of a text of `tokens` tokens that are measured, ascending: none where a recent window is everything.
  static std::vector<uint32_t> SampledPositions(const Options& options, uint32_t tokens, uint32_t measured_from);

  const Options& options() const { return options_; }
  uint64_t queries() const { return queries_; }  // per list
  // Means over all queries so far, by list. `streaming_below`: heads stream whose mass outside sinks and recent window
  // is less.
  std::vector<HeadProfile::Head> Heads(double streaming_below) const;

 private:
  struct Worker {
    std::vector<float> queries, weights, run_scales, run_sums, lse, importance;
  };
  void Measure(size_t item, Worker& worker);

  const Options options_;
  const KvLayout layout_;
  const Forward& forward_;
  const KernelTable& kernels_;
  Executor& executor_;

  std::optional<PrefillArena> arena_;
  std::vector<std::byte> tiles_;        // [list][block] index tiles
  std::vector<const void*> tile_list_;  // of the layer under way: [kv head][block]
  size_t tile_bytes_ = 0;
  size_t blocks_ = 0;  // of a list
  std::vector<uint32_t> sampled_;
  uint32_t first_ = 0;
  uint32_t count_ = 0;
  // The layer under way.
  int layer_ = 0;
  const float* q_pre_rope_ = nullptr;
  std::vector<uint32_t> positions_;  // sampled ones of the chunk
  std::vector<QueryNeeds> needs_;    // [position][kv head]
  std::vector<Worker> workers_;

  uint64_t queries_ = 0;
  std::vector<QueryNeeds> sums_;            // [list]
  std::vector<MassSummary> window_masses_;  // [list]
};

}  // namespace winnow
