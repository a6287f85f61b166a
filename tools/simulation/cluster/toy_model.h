#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/kv_layout.h"
#include "model/forward.h"
#include "winnow/v1/identity.pb.h"

namespace winnow::simulation {

// A model that costs nothing and forgives nothing: every row holds a hash of all that its token has seen, and what
// attention yields is a hash of the bytes of all rows that it reads. So a row that is lost, stale, torn, of another
// sequence or of another position, anywhere in the context, changes every token after it.
class ToyModel final : public Forward {
 public:
  static constexpr uint32_t kVocab = 96;
  static KvLayout Layout();
  static v1::Fingerprint Fingerprint();

  // `compute` is called with the work of each pass, rows and prompt tokens, before its results exist.
  explicit ToyModel(std::function<void(int rows, int prompt_tokens)> compute);
  void set_slots(const void* slots) { slots_ = static_cast<const std::byte*>(slots); }

  std::span<float> DecodeByLayer(std::span<const uint32_t> token_ids, std::span<const uint32_t> positions,
                                 DecodeKv& kv) override;
  std::span<float> Prefill(std::span<const uint32_t> token_ids, uint32_t first_position, bool last,
                           PrefillKv& kv) override;
  void EmbedPrompt(std::span<const uint32_t> token_ids, ResidualPlaces hidden) override;
  void PrefillLayer(int layer, uint32_t first_position, int num_tokens, bool last, ResidualPlaces hidden,
                    PrefillKv& kv) override;
  std::span<float> PromptLogits(ResidualPlaces hidden) override;
  const RopeTable& rope() const override { return rope_; }
  float attention_scale() const override { return 0.25f; }

  // Logits after the last of `tokens` where every token attends to all before it and itself, computed with nothing but
  // the formulas: the first `tokens` of an answer are what a Sampler draws from these.
  static std::vector<float> DenseLogits(std::span<const uint32_t> tokens);

 private:
  std::span<float> Logits(std::span<const uint64_t> states);

  const std::function<void(int, int)> compute_;
  RopeTable rope_;
  const std::byte* slots_ = nullptr;
  std::vector<uint64_t> states_;
  std::vector<float> rows_, queries_, predictions_, hidden_, logits_;
  SlotLists lists_;
};

}  // namespace winnow::simulation
