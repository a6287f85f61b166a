#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "cache_rank/select/predictor/from_past.h"
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

struct StepRank {
  Dtype kv_dtype = Dtype::kBf16;
  int num_gpus = 1;  // that hold the model together
};
inline std::string NameOf(const testing::TestParamInfo<StepRank>& info) {
  const std::string rows(DtypeName(info.param.kv_dtype));
  return info.param.num_gpus == 1 ? rows : rows + "On" + std::to_string(info.param.num_gpus) + "Gpus";
}
inline const auto kOneGpu = testing::Values(StepRank{Dtype::kBf16}, StepRank{Dtype::kI8});
inline const auto kOneGpuOrTwo =
    testing::Values(StepRank{Dtype::kBf16}, StepRank{Dtype::kI8}, StepRank{Dtype::kBf16, 2});
inline const auto kBf16OnOneGpuOrTwo = testing::Values(StepRank{Dtype::kBf16}, StepRank{Dtype::kBf16, 2});

// A backend with slots for a few sequences, whose prompts are random rows of that type.
class DeviceLocalStepTest : public testing::TestWithParam<StepRank> {
 protected:
  void SetUp() override {
    setenv("WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN, 1);
    WriteTinyCheckpoint(kModel, folder_.path());
    config_ = LoadModelConfig(folder_.path()).value();
    layout_ = config_.kv_layout(GetParam().kv_dtype);
    Start(ServerSpec());
  }
  // A rank with that selection of its own, in the place of the one before.
  void Start(const SelectionSpec& selection) {
    slots_.reset();
    backend_.reset();
    std::vector<int> gpus(GetParam().num_gpus);
    std::iota(gpus.begin(), gpus.end(), 0);
    backend_ =
        NewDeviceBackend(
            {.checkpoint = Checkpoint::Open(folder_.path()).value(),
             .config = &config_,
             .kv_dtype = GetParam().kv_dtype,
             .max_context_tokens = kMaxContext,
             .prefill_chunk_tokens = 64,
             .needs = {.layout = layout_, .selection = selection, .max_context_tokens = kMaxContext, .max_running = 6},
             .selects_in_place = true,
             .model_name = "tiny"},
            gpus)
            .value();
    slots_.emplace(backend_->NewSlotPool().value());
  }

  virtual SelectionSpec ServerSpec() const { return spec_; }

  struct Stream {
    std::optional<WorkingSet> set;
    uint32_t position = 0;
    std::vector<uint32_t> tokens;  // from the first that is decoded
    // Of each layer, before RoPE: of positions below `position`, the newest last. At first random.
    std::vector<std::vector<std::vector<float>>> past_queries = {};
    uint32_t prompt = 0;
    std::map<std::pair<int, int>, std::vector<uint32_t>> chosen = {};  // at the last anchor, by layer and query head
    uint32_t newest() const { return tokens.back(); }
  };

  Stream NewStream(uint32_t seed, uint32_t prompt) { return NewStream(seed, prompt, spec_); }
  Stream NewStream(uint32_t seed, uint32_t prompt, const SelectionSpec& spec) {
    Stream stream{
        .set = WorkingSet::Create(*slots_, layout_, spec, kMaxContext, prompt, SlotOrder::kByPosition).value(),
        .position = prompt,
        .tokens = {seed % kModel.vocab_size},
        .prompt = prompt};
    std::mt19937 random(seed);
    for (uint32_t p = 0; p < prompt; ++p) {
      for (int layer = 0; layer < layout_.num_layers; ++layer) {
        for (int head = 0; head < layout_.num_kv_heads; ++head) {
          stream.set->WriteRow(layer, head, p, RandomRow(random).data());
        }
      }
    }
    stream.set->FinishLoad(prompt);
    std::normal_distribution<float> normal(0, 2);
    const std::vector<std::vector<float>> of_layer(std::min(PastQueries(spec), prompt),
                                                   std::vector<float>(query_floats()));
    stream.past_queries.resize(layout_.num_layers, of_layer);
    for (auto& layer : stream.past_queries) {
      for (auto& query : layer) std::generate(query.begin(), query.end(), [&] { return normal(random); });
    }
    return stream;
  }
  size_t query_floats() const { return static_cast<size_t>(layout_.num_query_heads) * layout_.head_dim; }

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
    if (layout_.dtype != Dtype::kI8) {
      const auto* const row = static_cast<const std::byte*>(slot);
      return {row, row + layout_.row_bytes()};
    }
    const auto* const first = static_cast<const std::byte*>(slots_->rows());
    const size_t number = static_cast<size_t>(static_cast<const std::byte*>(slot) - first) / layout_.row_bytes();
    const size_t elements = layout_.row.scales_offset_bytes(layout_.head_dim, layout_.dtype);
    const auto* const row = first + number * elements;
    std::vector<std::byte> bytes(row, row + elements);
    const size_t num_slots = size_t{slots_->num_pages()} * kSlotPageTokens;
    const auto* const scales = first + num_slots * elements + number * 2 * sizeof(float);
    bytes.insert(bytes.end(), scales, scales + 2 * sizeof(float));
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
    std::vector<float> past;
    for (const auto& layer : stream.past_queries) {
      for (const std::vector<float>& query : layer) past.insert(past.end(), query.begin(), query.end());
    }
    const absl::Status taken = client().SetRow(row, {.spec = &spec,
                                                     .pages = pages,
                                                     .position = stream.position,
                                                     .max_positions = kMaxContext,
                                                     .prompt_tokens = stream.prompt,
                                                     .past_queries = past});
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

  const TempDir folder_;
  const SelectionSpec spec_{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  ModelConfig config_;
  KvLayout layout_;
  std::unique_ptr<Backend> backend_;
  std::optional<SlotPool> slots_;
};

}  // namespace winnow::test
