#include "inference_rank/scheduler.h"

#include <algorithm>

#include "common/base/check.h"

namespace winnow {

Sequence* Scheduler::Admit(const Free& free) {
  if (waiting_.empty() || num_running() >= limits_.max_running) return nullptr;
  const Sequence& head = *waiting_.front();
  if (head.needs_slots() && WorkingSet::PagesNeeded(layout_, head.spec, head.max_positions) > free.slot_pages) {
    return nullptr;
  }
  // An attach may have to prefill again, when a part of the prompt was lost.
  if (PrefillArena::BytesNeeded(layout_, head.prompt_tokens()) > free.prefill_bytes) return nullptr;
  running_.push_back(std::move(waiting_.front()));
  waiting_.erase(waiting_.begin());
  return running_.back().get();
}

size_t Scheduler::num_running() const {
  return std::count_if(running_.begin(), running_.end(),
                       [](const auto& sequence) { return sequence->state != Sequence::State::kHandedOver; });
}

Sequence* Scheduler::NextPrefill() const {
  for (const auto& sequence : running_) {
    if (sequence->state == Sequence::State::kPrefilling && sequence->failure.ok()) return sequence.get();
  }
  return nullptr;
}

std::span<Sequence* const> Scheduler::Decoding() {
  decoding_.clear();
  for (const auto& sequence : running_) {
    if (sequence->state == Sequence::State::kDecoding && sequence->failure.ok()) decoding_.push_back(sequence.get());
  }
  std::stable_sort(decoding_.begin(), decoding_.end(),
                   [](const Sequence* a, const Sequence* b) { return std::less<>()(a->link.get(), b->link.get()); });
  return decoding_;
}

std::unique_ptr<Sequence> Scheduler::Remove(const Sequence* sequence) {
  for (auto* list : {&running_, &waiting_}) {
    const auto found =
        std::find_if(list->begin(), list->end(), [&](const auto& entry) { return entry.get() == sequence; });
    if (found == list->end()) continue;
    std::unique_ptr<Sequence> taken = std::move(*found);
    list->erase(found);
    return taken;
  }
  WINNOW_CHECK(false);
  return nullptr;
}

void Scheduler::ForEach(const std::function<void(Sequence&)>& visit) {
  for (const auto& sequence : waiting_) visit(*sequence);
  for (const auto& sequence : running_) visit(*sequence);
}

Sequence* Scheduler::Find(const std::function<bool(const Sequence&)>& matches) {
  for (auto* list : {&running_, &waiting_}) {
    for (const auto& sequence : *list) {
      if (matches(*sequence)) return sequence.get();
    }
  }
  return nullptr;
}

}  // namespace winnow
