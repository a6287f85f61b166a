#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "inference_rank/backend/device_backend.h"
#include "inference_rank/memory/working_set.h"
#include "kernels/cpu/rotation.h"
#include "kernels/cpu/row_scales.h"
#include "kernels/cpu/scalar.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow::test {

inline const TinyModel kModel{.num_layers = 3,
                              .hidden_size = 64,
                              .intermediate_size = 96,
                              .num_query_heads = 8,
                              .num_kv_heads = 4,
                              .head_dim = 64,
                              .vocab_size = 96};
inline constexpr uint32_t kMaxContext = 256;

inline uint32_t WindowStart(const SelectionSpec& spec, uint32_t position) {
  return RecentStart(position, spec.recent_tokens, spec.sink_tokens, kBlockTokens);
}

// A backend with slots for a few sequences, whose prompts are random rows of that type.
class DeviceLocalStepTest : public testing::TestWithParam<Dtype> {
 protected:
  void SetUp() override {
    setenv("WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN, 1);
    WriteTinyCheckpoint(kModel, folder_.path());
    config_ = LoadModelConfig(folder_.path()).value();
    layout_ = config_.kv_layout(GetParam());
    Start(spec_);
  }
  // A rank with that selection of its own, in the place of the one before.
  void Start(const SelectionSpec& selection) {
    slots_.reset();
    backend_.reset();
    const int gpus[] = {0};
    backend_ =
        NewDeviceBackend(
            {.checkpoint = Checkpoint::Open(folder_.path()).value(),
             .config = &config_,
             .kv_dtype = GetParam(),
             .max_context_tokens = kMaxContext,
             .prefill_chunk_tokens = 64,
             .needs = {.layout = layout_, .selection = selection, .max_context_tokens = kMaxContext, .max_running = 6},
             .selects_in_place = true,
             .model_name = "tiny"},
            gpus)
            .value();
    slots_.emplace(backend_->NewSlotPool().value());
  }

  struct Stream {
    std::optional<WorkingSet> set;
    uint32_t position = 0;
    std::vector<uint32_t> tokens;  // from the first that is decoded
    uint32_t newest() const { return tokens.back(); }
  };

  Stream NewStream(uint32_t seed, uint32_t prompt) { return NewStream(seed, prompt, spec_); }
  Stream NewStream(uint32_t seed, uint32_t prompt, const SelectionSpec& spec) {
    Stream stream{
        .set = WorkingSet::Create(*slots_, layout_, spec, kMaxContext, prompt, SlotOrder::kByPosition).value(),
        .position = prompt,
        .tokens = {seed % kModel.vocab_size}};
    std::mt19937 random(seed);
    for (uint32_t p = 0; p < prompt; ++p) {
      for (int layer = 0; layer < layout_.num_layers; ++layer) {
        for (int head = 0; head < layout_.num_kv_heads; ++head) {
          stream.set->WriteRow(layer, head, p, RandomRow(random).data());
        }
      }
    }
    stream.set->FinishLoad(prompt);
    return stream;
  }

  // Elements of magnitudes between an eighth and a half.
  std::vector<std::byte> RandomRow(std::mt19937& random) const {
    std::vector<float> elements(2 * static_cast<size_t>(layout_.head_dim));
    for (float& element : elements) {
      element = Bf16ToF32(static_cast<uint16_t>(0x3e00 + random() % 0x200 + random() % 2 * 0x8000));
    }
    std::vector<std::byte> row(layout_.row_bytes());
    StoreRow(elements.data(), elements.data() + layout_.head_dim, layout_.head_dim, layout_.dtype, row.data());
    return row;
  }
  // Of a slot, whose scales of int8 lie behind the codes of all slots.
  std::vector<std::byte> RowIn(const void* slot) const {
    const auto* const first = static_cast<const std::byte*>(slots_->rows());
    const size_t number = static_cast<size_t>(static_cast<const std::byte*>(slot) - first) / layout_.row_bytes();
    const size_t elements = layout_.row.scales_offset_bytes(layout_.head_dim, layout_.dtype);
    const auto* const row = first + number * elements;
    std::vector<std::byte> bytes(row, row + elements);
    if (layout_.dtype == Dtype::kI8) {
      const size_t num_slots = size_t{slots_->num_pages()} * kSlotPageTokens;
      const auto* const scales = first + num_slots * elements + number * 2 * sizeof(float);
      bytes.insert(bytes.end(), scales, scales + 2 * sizeof(float));
    }
    return bytes;
  }
  std::vector<float> KeyIn(const void* slot) const {
    const std::vector<std::byte> row = RowIn(slot);
    std::vector<float> key(layout_.head_dim);
    for (int d = 0; d < layout_.head_dim; ++d) {
      key[d] = layout_.dtype == Dtype::kI8
                   ? reinterpret_cast<const int8_t*>(row.data())[d] * KeyScale(row.data(), layout_.head_dim)
                   : Bf16ToF32(reinterpret_cast<const uint16_t*>(row.data())[d]);
    }
    return key;
  }

  // The logits of the stream's newest token, by frames and alone; its rows stay.
  std::vector<float> ByFrames(Stream& stream) {
    stream.set->Advance(stream.position);
    Kv kv(*this, stream);
    const uint32_t token = stream.newest();
    const std::span<float> logits = backend_->forward().DecodeByLayer({&token, 1}, {&stream.position, 1}, kv);
    ++stream.position;
    return {logits.begin(), logits.end()};
  }

  StepClient& client() { return *backend_->step_client(); }
  void Sit(int row, const Stream& stream, const SelectionSpec& spec) {
    const std::vector<uint32_t> pages = stream.set->PagesOfLists(WholeModel(layout_), client().pages_per_list());
    const absl::Status taken = client().SetRow(row, {.spec = &spec,
                                                     .pages = pages,
                                                     .position = stream.position,
                                                     .max_positions = kMaxContext,
                                                     .prompt_tokens = stream.position});
    EXPECT_TRUE(taken.ok()) << taken;
  }
  void Sit(int row, const Stream& stream) { Sit(row, stream, spec_); }
  std::vector<std::byte> StoredRows(const Stream& stream, uint32_t position) const {
    std::vector<std::byte> rows;
    for (int layer = 0; layer < layout_.num_layers; ++layer) {
      for (int head = 0; head < layout_.num_kv_heads; ++head) {
        const std::vector<std::byte> row = RowIn(stream.set->PlaceOfRow(layer, head, position));
        rows.insert(rows.end(), row.begin(), row.end());
      }
    }
    return rows;
  }

  class Kv final : public DecodeKv {
   public:
    Kv(DeviceLocalStepTest& test, Stream& stream) : test_(test), stream_(stream) {}
    int Lookahead() const override { return 0; }
    void Publish(const DecodeLayerOutput& output) override {
      for (int head = 0; head < test_.layout_.num_kv_heads; ++head) {
        stream_.set->WriteRow(output.layer, head, stream_.position, output.kv_rows + head * test_.layout_.row_bytes());
      }
    }
    void AwaitSlots(int layer, SlotLists& lists) override {
      for (int head = 0; head < test_.layout_.num_kv_heads; ++head) {
        lists.Add(stream_.set->Slots(layer, head), test_.layout_.group_size());
      }
    }

   private:
    DeviceLocalStepTest& test_;
    Stream& stream_;
  };

  // Selects by brute force as the specification says, from the keys that the stream has, and attends to that by frames.
  class SelectingKv final : public DecodeKv {
   public:
    SelectingKv(DeviceLocalStepTest& test, Stream& stream, const SelectionSpec& spec)
        : test_(test), stream_(stream), spec_(spec), queries_(test.layout_.num_layers) {}
    int Lookahead() const override { return spec_.predictor == Predictor::kDepth ? 1 : 0; }
    void Publish(const DecodeLayerOutput& output) override {
      const KvLayout& layout = test_.layout_;
      for (int head = 0; head < layout.num_kv_heads; ++head) {
        stream_.set->WriteRow(output.layer, head, stream_.position, output.kv_rows + head * layout.row_bytes());
      }
      const size_t floats = static_cast<size_t>(layout.num_query_heads) * layout.head_dim;
      const auto keep = [&](int layer, const float* queries) {
        if (queries_[layer].empty()) queries_[layer].assign(queries, queries + floats);
      };
      keep(output.layer, output.q_pre_rope);
      if (output.prediction != nullptr) keep(output.prediction_layer, output.prediction);
    }
    void AwaitSlots(int layer, SlotLists& lists) override {
      for (int head = 0; head < test_.layout_.num_kv_heads; ++head) {
        std::vector<uint32_t>& slots = lists_.emplace_back();
        for (const uint32_t row : Attended(layer, head)) slots.push_back(SlotOf(layer, head, row));
        lists.Add(slots, test_.layout_.group_size());
      }
    }

   private:
    std::vector<float> Rotated(const float* query) const {
      const RopeTable& rope = test_.backend_->forward().rope();
      const int half = test_.layout_.head_dim / 2;
      std::vector<float> out(2 * half);
      for (int i = 0; i < half; ++i) {
        const float angle = static_cast<float>(stream_.position) * rope.inv_freq[i];
        out[i] = query[i] * std::cos(angle) - query[i + half] * std::sin(angle);
        out[i + half] = query[i + half] * std::cos(angle) + query[i] * std::sin(angle);
      }
      return out;
    }
    // Keys of int8 are scored with a query that is rounded as they are.
    std::vector<float> AsScored(std::vector<float> query) const {
      if (test_.layout_.dtype != Dtype::kI8) return query;
      std::vector<int8_t> codes(query.size());
      const float scale = QuantizeInt8(query.data(), static_cast<int>(query.size()), codes.data());
      std::transform(codes.begin(), codes.end(), query.begin(), [scale](int8_t code) { return code * scale; });
      return query;
    }
    double Score(const std::vector<float>& query, int layer, int head, uint32_t row) const {
      const std::vector<float> key = test_.KeyIn(stream_.set->PlaceOfRow(layer, head, row));
      double score = 0;
      for (size_t d = 0; d < query.size(); ++d) score += double{query[d]} * key[d];
      return score / std::sqrt(static_cast<double>(query.size()));
    }
    // The rows of the greatest importance below the recent window: the softmax over all earlier keys, by query head.
    std::vector<uint32_t> Attended(int layer, int head) const {
      const uint32_t position = stream_.position, window = WindowStart(spec_, position);
      std::vector<uint32_t> chosen;
      for (uint32_t row = spec_.sink_tokens; row < window; ++row) chosen.push_back(row);
      if (chosen.size() > spec_.budget_tokens && position >= spec_.dense_below_tokens) {
        std::vector<double> importance(position);
        for (int g = 0; g < test_.layout_.group_size(); ++g) {
          const int query_head = head * test_.layout_.group_size() + g;
          const std::vector<float> query =
              AsScored(Rotated(queries_[layer].data() + static_cast<size_t>(query_head) * test_.layout_.head_dim));
          std::vector<double> weights;
          double sum = 0;
          for (uint32_t row = 0; row < position; ++row) {
            sum += weights.emplace_back(std::exp(Score(query, layer, head, row)));
          }
          for (uint32_t row = 0; row < position; ++row) importance[row] += weights[row] / sum;
        }
        std::stable_sort(chosen.begin(), chosen.end(),
                         [&](uint32_t a, uint32_t b) { return importance[a] > importance[b]; });
        chosen.resize(spec_.budget_tokens);
        std::sort(chosen.begin(), chosen.end());
      }
      std::vector<uint32_t> rows;
      for (uint32_t row = 0; row < std::min(spec_.sink_tokens, position + 1); ++row) rows.push_back(row);
      rows.insert(rows.end(), chosen.begin(), chosen.end());
      for (uint32_t row = window; row <= position; ++row) rows.push_back(row);
      return rows;
    }
    uint32_t SlotOf(int layer, int head, uint32_t row) const {
      const auto* const first = static_cast<const std::byte*>(test_.slots_->row(0));
      return static_cast<uint32_t>((static_cast<const std::byte*>(stream_.set->PlaceOfRow(layer, head, row)) - first) /
                                   test_.layout_.row_bytes());
    }

    DeviceLocalStepTest& test_;
    Stream& stream_;
    const SelectionSpec& spec_;
    std::vector<std::vector<float>> queries_;  // by layer, before RoPE, that select
    std::deque<std::vector<uint32_t>> lists_;
  };

  std::vector<float> BySelecting(Stream& stream, const SelectionSpec& spec) {
    SelectingKv kv(*this, stream, spec);
    const uint32_t token = stream.newest();
    const std::span<float> logits = backend_->forward().DecodeByLayer({&token, 1}, {&stream.position, 1}, kv);
    ++stream.position;
    return {logits.begin(), logits.end()};
  }

  const TempDir folder_;
  const SelectionSpec spec_{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  ModelConfig config_;
  KvLayout layout_;
  std::unique_ptr<Backend> backend_;
  std::optional<SlotPool> slots_;
};

}  // namespace winnow::test
