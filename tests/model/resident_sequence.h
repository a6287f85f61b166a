#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "model/transformer.h"

namespace winnow {

// The KV side of sequences whose rows all stay where the transformer reads them, f32: row p of list (layer, kv head) of
// sequence s lies in slot ((s * lists) + list) * max_positions + p.
class ResidentSequences {
 public:
  ResidentSequences(const ModelConfig& config, int num_sequences, uint32_t max_positions)
      : config_(config), max_positions_(max_positions) {
    const size_t lists = static_cast<size_t>(config.num_kv_layers()) * config.num_kv_heads;
    states_.assign(num_sequences, std::vector<float>(config.state_floats()));
    rows_.resize(num_sequences * lists * max_positions * row_floats());
    for (uint32_t slot = 0; slot < num_sequences * lists * max_positions; ++slot) slots_.push_back(slot);
  }

  const void* slot_pool() const { return rows_.data(); }

  // Prompt `tokens` in chunks of `chunk`; the last token alone, as it is served. Returns its logits.
  std::vector<float> Prefill(Transformer& transformer, int sequence, const std::vector<uint32_t>& tokens,
                             size_t chunk) {
    Prefilling kv(*this, sequence);
    std::fill(states_[sequence].begin(), states_[sequence].end(), 0.0f);
    for (size_t first = 0; first + 1 < tokens.size(); first += chunk) {
      const size_t count = std::min(chunk, tokens.size() - 1 - first);
      piece_ = static_cast<uint32_t>(count);
      transformer.Prefill({tokens.data() + first, count}, static_cast<uint32_t>(first), false, kv);
    }
    const auto last = static_cast<uint32_t>(tokens.size() - 1);
    piece_ = 1;
    const std::span<float> logits = transformer.Prefill({&tokens.back(), 1}, last, true, kv);
    return {logits.begin(), logits.end()};
  }

  // One token of each of `sequences`, at those positions. Returns each row's logits.
  std::vector<std::vector<float>> Decode(Transformer& transformer, const std::vector<int>& sequences,
                                         const std::vector<uint32_t>& tokens, const std::vector<uint32_t>& positions) {
    Decoding kv(*this, sequences, positions);
    const std::span<float> logits = transformer.DecodeByLayer(tokens, positions, kv);
    std::vector<std::vector<float>> rows;
    for (size_t row = 0; row < sequences.size(); ++row) {
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row) * config_.vocab_size;
      rows.emplace_back(begin, begin + config_.vocab_size);
    }
    return rows;
  }

 private:
  size_t row_floats() const { return config_.kv_layout(Dtype::kF32).row_bytes() / sizeof(float); }
  size_t FirstSlot(int sequence, int layer, int kv_head) const {
    return ((static_cast<size_t>(sequence) * config_.num_kv_layers() + layer) * config_.num_kv_heads + kv_head) *
           max_positions_;
  }
  float* Row(int sequence, int layer, int kv_head, uint32_t position) {
    return rows_.data() + (FirstSlot(sequence, layer, kv_head) + position) * row_floats();
  }

  class Prefilling final : public PrefillKv {
   public:
    Prefilling(ResidentSequences& owner, int sequence) : owner_(owner), sequence_(sequence) {
      next_.resize(owner.config_.num_kv_layers());
    }
    Rows Publish(int layer, const std::byte* kv_rows, const float*) override {
      const size_t bytes = owner_.row_floats() * sizeof(float);
      const int heads = owner_.config_.num_kv_heads;
      for (uint32_t i = 0; i < owner_.piece_; ++i) {
        for (int head = 0; head < heads; ++head) {
          std::memcpy(owner_.Row(sequence_, layer, head, next_[layer] + i), kv_rows + (i * heads + head) * bytes,
                      bytes);
        }
      }
      next_[layer] += owner_.piece_;
      return {.kv = owner_.Row(sequence_, layer, 0, 0), .head_stride = owner_.max_positions_};
    }

    float* State() const override { return owner_.states_[sequence_].data(); }

   private:
    ResidentSequences& owner_;
    const int sequence_;
    std::vector<uint32_t> next_;
  };

  class Decoding final : public DecodeKv {
   public:
    Decoding(ResidentSequences& owner, const std::vector<int>& sequences, const std::vector<uint32_t>& positions)
        : owner_(owner), sequences_(sequences), positions_(positions) {}
    int Lookahead() const override { return 0; }
    void Publish(const DecodeLayerOutput& output) override {
      const size_t bytes = owner_.row_floats() * sizeof(float);
      const std::byte* from = output.kv_rows;
      for (size_t row = 0; row < sequences_.size(); ++row) {
        for (int head = 0; head < owner_.config_.num_kv_heads; ++head, from += bytes) {
          std::memcpy(owner_.Row(sequences_[row], output.layer, head, positions_[row]), from, bytes);
        }
      }
    }
    void AwaitSlots(int layer, SlotLists& lists) override {
      for (size_t row = 0; row < sequences_.size(); ++row) {
        for (int head = 0; head < owner_.config_.num_kv_heads; ++head) {
          const size_t first = owner_.FirstSlot(sequences_[row], layer, head);
          lists.Add({owner_.slots_.data() + first, positions_[row] + 1}, owner_.config_.group_size());
        }
      }
    }

    float* State(int row) const override { return owner_.states_[sequences_[row]].data(); }

   private:
    ResidentSequences& owner_;
    const std::vector<int>& sequences_;
    const std::vector<uint32_t>& positions_;
  };

  const ModelConfig& config_;
  const uint32_t max_positions_;
  std::vector<std::vector<float>> states_;  // of hybrid models
  std::vector<float> rows_;
  std::vector<uint32_t> slots_;
  uint32_t piece_ = 0;  // tokens of the chunk under way
};

}  // namespace winnow
