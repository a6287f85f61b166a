#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache_rank/select/host/select_head.h"
#include "cache_rank/select/scorer/loop_help.h"
#include "cache_rank/select/verify/verify_head.h"
#include "cache_rank/store/row_tiers.h"
#include "cache_rank/store/sequence_store.h"
#include "common/selection/mass_positions.h"
#include "kernels/kernel_table.h"

namespace winnow {

// What is done for a (sequence, layer) whose turn it is.
enum class SelectionWork : uint8_t {
  kSend,    // what is selected already
  kSelect,  // and send it, if its plan has come; verify it where the selecting query is the real one
  kVerify,  // what is selected and sent already, with the real query
};

// One (sequence, layer) of a batch.
struct BatchRow {
  CachedSequence* sequence = nullptr;
  LayerSelection* layer = nullptr;
  int layer_index = 0;  // of the shard
  uint32_t position = 0;
  SelectionWork work = SelectionWork::kSend;
  bool selected_by_batch = false;
  bool sends = false;
  bool verifies = false;
  std::vector<std::unique_ptr<HeadDelta>> deltas;      // [num_kv_heads], where it sends
  std::vector<std::unique_ptr<HeadPartial>> partials;  // [num_kv_heads], where it verifies
  std::vector<uint8_t> grew;                           // [num_kv_heads] by its verification

  bool selects() const { return work == SelectionWork::kSelect && !selected_by_batch; }
};

// Which captured masses are measured.
struct MassMeasuring {
  bool measure_captured_mass = true;
  uint32_t mass_interval = kMassInterval;  // of MeasuresMass
  // From every key, also where the scorer reads fewer and a bound would do.
  bool measure_exactly = false;
};

// The work of a batch on one kv head: asks for the selection, compares it with the image of the pool, and has it
// verified. One object for all workers; different workers work on different (row, kv head) at a time.
class HeadSelector {
 public:
  HeadSelector(const MassMeasuring& measuring, const SelectionModel& model, const KernelTable* kernels, int num_workers,
               const SequenceStore* store)
      : measuring_(measuring),
        model_(model),
        kernels_(kernels),
        store_(store),
        help_(num_workers),
        scratch_(num_workers),
        verify_scratch_(num_workers) {
    for (int worker = 0; worker < num_workers; ++worker) scratch_[worker].help = &help_.loop(worker);
  }

  // Of workers that have no head, for those that have one.
  LoopHelp& help() { return help_; }

  // Everything that `row` is to have done: its head's selection, delta and verification.
  void Run(BatchRow& row, int head, int worker);
  // The same for rows that select and share blocks, which are read once.
  void RunTogether(std::span<BatchRow* const> rows, int head, int worker);

  // The position's captured mass, or that of the position before, is measured in the pass that selects for it.
  bool MeasuresMass(const BatchRow& row, int head) const { return Question(row, head).measured != nullptr; }

  // Bytes that all workers have read so far.
  struct KeyBytes {
    uint64_t scored = 0;    // to select, to verify and to measure
    uint64_t of_pages = 0;  // of them, of pages' pseudo-keys
    uint64_t shared = 0;    // not read again, because several sequences have them
  };
  KeyBytes key_bytes() const;

 private:
  HeadQuestion Question(const BatchRow& row, int head) const;
  bool Measures(const CachedSequence& sequence, uint32_t position) const;
  static void KeepPrevious(BatchRow& row, int head);
  // Selects where that is to be done; returns the captured mass of the position before.
  CapturedMassFigure Select(BatchRow& row, int head, int worker);
  // What has been selected goes into the row's delta, with the captured mass of the position before.
  void FillDelta(BatchRow& row, int head, int worker, CapturedMassFigure previous);
  void Verify(BatchRow& row, int head, int worker);

  // Constant after construction.
  const MassMeasuring measuring_;
  const SelectionModel model_;
  const KernelTable* const kernels_;
  const SequenceStore* const store_;

  LoopHelp help_;
  // A worker's own.
  std::vector<SelectScratch> scratch_;  // [num_workers]
  std::vector<VerifyScratch> verify_scratch_;
};

}  // namespace winnow
