#include "cache_rank/step/damage_response.h"

#include <algorithm>

namespace winnow {

std::vector<uint64_t> DamageResponse::Respond(InferenceLinks& links) {
  std::vector<uint64_t> given_up;
  if (pool_->damage_count() == responded_) return given_up;
  // The block of one may be held by others, which are then found damaged, too.
  for (const uint64_t id : store_->sequence_ids()) {
    const CachedSequence& sequence = *store_->Find(id);
    if (const auto row = sequence.kv.damage()) {
      store_->CondemnBlock(sequence.kv.block_number(row->layer, row->kv_head, row->position / kBlockTokens),
                           row->position % kBlockTokens);
    }
  }
  responded_ = pool_->damage_count();
  for (const uint64_t id : store_->sequence_ids()) {
    const CachedSequence& sequence = *store_->Find(id);
    if (const auto row = sequence.kv.damage()) {
      GiveUp(sequence, *row, links);
      given_up.push_back(id);
    }
  }
  return given_up;
}

void DamageResponse::GiveUp(const CachedSequence& sequence, const DamagedRow& row, InferenceLinks& links) {
  metrics_->damaged_sequences.Add(1);
  if (on_damage_) {
    on_damage_(sequence.id,
               absl::StrCat("sequence ", sequence.id, ", layer ", sequence.layer_of_model(row.layer), ", kv head ",
                            sequence.head_of_model(row.kv_head), ", position ", row.position, ", block ",
                            sequence.kv.block_number(row.layer, row.kv_head, row.position / kBlockTokens)));
  }
  if (const auto link = links.find(sequence.channel); link != links.end()) {
    streamer_->SendDamaged(*link->second, sequence, row);
  }
  // Nobody else has changed its epoch on this thread.
  store_->Release(sequence.id, sequence.attach_epoch).IgnoreError();
}

}  // namespace winnow
