#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "inference_rank/sequence.h"

namespace winnow {

// Which sequence does what next: host logic without clocks or I/O. Admission is first come, first served (the head of
// the queue waits for its resources and nothing overtakes it, so nothing starves); prefills run one chunk at a time in
// the same order, decode steps take every decoding sequence.
class Scheduler {
 public:
  struct Limits {
    uint32_t max_running = 64;
    size_t prefill_memory_bytes = size_t{1} << 30;
  };
  struct Free {
    uint32_t slot_pages = 0;
    size_t prefill_bytes = 0;
  };

  Scheduler(const Limits& limits, const KvLayout& layout) : limits_(limits), layout_(layout) {}

  void Enqueue(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

  // The head of the queue when it fits, moved to the running ones (state unchanged); null otherwise.
  Sequence* Admit(const Free& free);
  // The oldest sequence that prefills, or null.
  Sequence* NextPrefill() const;
  // Decoding sequences, those of one cache rank side by side, otherwise in order of admission. Valid until the next
  // call.
  std::span<Sequence* const> Decoding();

  // Takes a sequence out. It must be one of ours.
  std::unique_ptr<Sequence> Remove(const Sequence* sequence);
  // Calls `visit` for every sequence, waiting ones included; it may not add or remove any.
  void ForEach(const std::function<void(Sequence&)>& visit);
  Sequence* Find(const std::function<bool(const Sequence&)>& matches);

  size_t num_waiting() const { return waiting_.size(); }
  // Without those that were handed over: they only wait to be taken.
  size_t num_running() const;

 private:
  const Limits limits_;
  const KvLayout layout_;
  std::vector<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::vector<Sequence*> decoding_;
};

}  // namespace winnow
