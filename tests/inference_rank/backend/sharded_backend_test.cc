// A model that several GPUs hold together computes what one GPU computes, here GPUs made of host memory
// (tests/support/host_gpu): dense attention through the slots, the prompts' place and the launches that serve.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "inference_rank/backend/device_backend.h"
#include "inference_rank/memory/prefill_arena.h"
#include "inference_rank/memory/working_set.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow::test {
namespace {

using testing::HasSubstr;

// Sums of f32 are added up in another order, which flips some roundings to bf16 of what enters a matrix, by 2^-8 of one
// of many terms; logits are of size 1. Heads that are mixed up change them by that much.
constexpr float kLogitTolerance = 0.03f;

const TinyModel kModel{.num_layers = 3,
                       .hidden_size = 64,
                       .intermediate_size = 96,
                       .num_query_heads = 8,
                       .num_kv_heads = 4,
                       .head_dim = 64,
                       .vocab_size = 96};
constexpr uint32_t kMaxContext = 256;
constexpr int kChunk = 64;

const TempDir& Folder() {
  static const TempDir folder;
  return folder;
}

struct Environment : testing::Environment {
  void SetUp() override {
    setenv("WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN, 1);
    setenv("WINNOW_HOST_GPU_FAULT", (Folder().path() + "/fault").c_str(), 1);
    WriteTinyCheckpoint(kModel, Folder().path());
  }
};
const testing::Environment* const kEnvironment = testing::AddGlobalTestEnvironment(new Environment);

uint32_t TokenAt(uint32_t seed, uint32_t position) {
  return (seed * 31 + position * position * 7 + position * 3) % kModel.vocab_size;
}

// What was published of one layer.
struct Published {
  std::vector<std::byte> rows;
  std::vector<float> queries, prediction, hidden;
  void Append(const Published& more) {
    rows.insert(rows.end(), more.rows.begin(), more.rows.end());
    queries.insert(queries.end(), more.queries.begin(), more.queries.end());
  }
};

struct Sequence {
  std::optional<WorkingSet> set;
  std::optional<PrefillArena> arena;
  uint32_t seed = 0;
  uint32_t position = 0;
  std::vector<float> prompt_logits;
};

struct StepOptions {
  bool slots_come_first = false;  // not for rows that are sinks, too
  bool corrects = false;          // heads 1 and 3 of the first row
  bool per_query_head = false;    // lists of the first row, each shorter than the one before
  bool slots_are_late = false;    // they come after the projections
};

// A rank's memory and forward pass on these GPUs, without cache ranks: everything is attended.
class Rank {
 public:
  explicit Rank(const std::vector<int>& gpus) {
    config_ = LoadModelConfig(Folder().path()).value();
    layout_ = config_.kv_layout(Dtype::kBf16);
    BackendOptions options{
        .checkpoint = Checkpoint::Open(Folder().path()).value(),
        .config = &config_,
        .max_context_tokens = kMaxContext,
        .prefill_chunk_tokens = kChunk,
        .needs = {.layout = layout_, .selection = spec_, .max_context_tokens = kMaxContext, .max_running = 8},
        .model_name = "tiny"};
    backend_ = NewDeviceBackend(options, gpus).value();
    slots_.emplace(backend_->NewSlotPool().value());
  }

  // The tokens of `seed` up to `prompt`, in chunks.
  Sequence Prefill(uint32_t seed, uint32_t prompt) {
    Sequence sequence = NewSequence(seed, prompt, /*hidden_size=*/0);
    std::vector<Published> of_prompt(layout_.num_layers);
    for (const Piece& piece : Pieces(prompt)) {
      PromptKv kv(*this, sequence, piece.count);
      const std::span<float> logits = forward().Prefill(TokensOf(seed, piece), piece.first, piece.last, kv);
      sequence.prompt_logits.assign(logits.begin(), logits.end());
      for (int layer = 0; layer < layout_.num_layers; ++layer) of_prompt[layer].Append(published[layer]);
    }
    for (int layer = 0; layer < layout_.num_layers; ++layer) KeepRows(sequence, layer);
    sequence.set->FinishLoad(prompt);
    sequence.arena.reset();
    published = std::move(of_prompt);
    return sequence;
  }

  // The same layer by layer.
  Sequence PrefillByLayer(uint32_t seed, uint32_t prompt) {
    Sequence sequence = NewSequence(seed, prompt, static_cast<uint32_t>(config_.hidden_size));
    std::vector<std::unique_ptr<PromptKv>> kvs;  // each is there until its piece is published
    std::vector<float*> end;
    of_pieces_.assign(layout_.num_layers, {});
    for (int layer = 0; layer < layout_.num_layers; ++layer) {
      for (const Piece& piece : Pieces(prompt)) {
        end = sequence.arena->Residuals(piece.first);
        if (layer == 0) forward().EmbedPrompt(TokensOf(seed, piece), end);
        kvs.push_back(std::make_unique<PromptKv>(*this, sequence, piece.count, &of_pieces_));
        forward().PrefillLayer(layer, piece.first, static_cast<int>(piece.count), piece.last, end, *kvs.back());
      }
      if (layer == 1) forward().SettlePrompt();
      KeepRows(sequence, layer);
    }
    const std::span<float> logits = forward().PromptLogits(end);
    sequence.prompt_logits.assign(logits.begin(), logits.end());
    sequence.set->FinishLoad(prompt);
    sequence.arena.reset();
    published = of_pieces_;
    return sequence;
  }

  // One step of all of them; logits by row.
  std::vector<std::vector<float>> Decode(std::span<Sequence*> sequences, StepOptions options = {}) {
    std::vector<uint32_t> tokens, positions;
    for (Sequence* sequence : sequences) {
      tokens.push_back(TokenAt(sequence->seed, sequence->position));
      positions.push_back(sequence->position);
      sequence->set->Advance(sequence->position);
    }
    StepKv kv(*this, sequences, options);
    const std::span<float> logits = forward().DecodeByLayer(tokens, positions, kv);
    std::vector<std::vector<float>> rows;
    if (!forward().status().ok()) return rows;
    for (size_t i = 0; i < sequences.size(); ++i, sequences[i - 1]->position++) {
      rows.emplace_back(logits.begin() + i * config_.vocab_size, logits.begin() + (i + 1) * config_.vocab_size);
    }
    return rows;
  }
  std::vector<float> DecodeAlone(Sequence& sequence, StepOptions options = {}) {
    Sequence* one[] = {&sequence};
    return Decode(one, options).at(0);
  }

  Forward& forward() { return backend_->forward(); }
  Backend& backend() { return *backend_; }
  SlotPool& slots() { return *slots_; }
  // Of the last pass, by layer.
  std::vector<Published> published;
  std::string calls;  // of the last step

 private:
  struct Piece {
    uint32_t first, count;
    bool last;
  };
  static std::vector<Piece> Pieces(uint32_t prompt) {
    std::vector<Piece> pieces;
    for (uint32_t first = 0; first < prompt; first += pieces.back().count) {
      const bool last = first + 1 == prompt;
      pieces.push_back({first, last ? 1 : std::min<uint32_t>(kChunk, prompt - 1 - first), last});
    }
    return pieces;
  }
  static std::vector<uint32_t> TokensOf(uint32_t seed, const Piece& piece) {
    std::vector<uint32_t> tokens;
    for (uint32_t p = piece.first; p < piece.first + piece.count; ++p) tokens.push_back(TokenAt(seed, p));
    return tokens;
  }
  Sequence NewSequence(uint32_t seed, uint32_t prompt, uint32_t hidden_size) {
    Sequence sequence;
    sequence.seed = seed;
    sequence.position = prompt;
    sequence.set.emplace(WorkingSet::Create(*slots_, layout_, spec_, kMaxContext, prompt).value());
    sequence.arena.emplace(PrefillArena::CreateIn(*backend_->prefill_region(), layout_, prompt, hidden_size).value());
    return sequence;
  }
  void KeepRows(Sequence& sequence, int layer) {
    for (int head = 0; head < layout_.num_kv_heads; ++head) {
      sequence.set->LoadRows(layer, head, 0, sequence.position, sequence.arena->row(layer, head, 0), sequence.position,
                             WorkingSet::RowsIn::kSlotMemory);
    }
  }

  class PromptKv final : public PrefillKv {
   public:
    // `all`: where pieces are added up; null: `published` is that of this one.
    PromptKv(Rank& rank, Sequence& sequence, uint32_t count, std::vector<Published>* all = nullptr)
        : rank_(rank), sequence_(sequence), count_(count), all_(all) {
      rank.published.assign(rank.layout_.num_layers, {});
    }
    Rows Destination(int layer, int first_kv_head) override {
      return {.kv = sequence_.arena->row(layer, first_kv_head, 0), .head_stride = sequence_.arena->prompt_tokens()};
    }
    Rows Publish(int layer, const std::byte* kv_rows, const float* q_pre_rope) override {
      const size_t q = rank_.config_.q_features(), bytes = rank_.layout_.num_kv_heads * rank_.layout_.row_bytes();
      Published& published = rank_.published[layer];
      published.rows.assign(kv_rows, kv_rows + count_ * bytes);
      published.queries.assign(q_pre_rope, q_pre_rope + count_ * q);
      if (all_ != nullptr) all_->at(layer).Append(published);
      return Destination(layer, 0);
    }

   private:
    Rank& rank_;
    Sequence& sequence_;
    const uint32_t count_;
    std::vector<Published>* const all_;
  };

  class StepKv final : public DecodeKv {
   public:
    StepKv(Rank& rank, std::span<Sequence*> sequences, StepOptions options)
        : rank_(rank), sequences_(sequences), options_(options), partial_o_(2 * rank.config_.head_dim) {
      rank.published.assign(rank.layout_.num_layers, {});
      rank.calls.clear();
      for (size_t i = 0; i < partial_o_.size(); ++i) partial_o_[i] = std::sin(static_cast<float>(i));
    }
    int Lookahead() const override { return 1; }
    bool SlotsComeFirst(int) const override { return options_.slots_come_first; }
    bool PollSlots(int) override { return !options_.slots_are_late; }
    bool WaitsForPartials() const override { return options_.corrects; }
    void PlacesOfRows(HeadRange heads, std::span<void*> places) const override {
      size_t at = 0;
      for (int layer = 0; layer < rank_.layout_.num_layers; ++layer) {
        for (const Sequence* sequence : sequences_) {
          for (int i = 0; i < heads.count; ++i) {
            places[at++] = sequence->set->PlaceOfRow(layer, heads.first + i, sequence->position);
          }
        }
      }
    }
    void Publish(const DecodeLayerOutput& output) override {
      rank_.calls += absl::StrCat(" publish ", output.layer);
      const size_t rows = sequences_.size(), q = rank_.config_.q_features();
      const size_t row_bytes = rank_.layout_.row_bytes(), heads = rank_.layout_.num_kv_heads;
      Published& published = rank_.published[output.layer];
      published.rows.assign(output.kv_rows, output.kv_rows + rows * heads * row_bytes);
      published.queries.assign(output.q_pre_rope, output.q_pre_rope + rows * q);
      if (output.prediction != nullptr) published.prediction.assign(output.prediction, output.prediction + rows * q);
      published.hidden.assign(output.hidden, output.hidden + rows * output.hidden_size);
      EXPECT_EQ(output.rows_are_resident, options_.slots_come_first && !options_.corrects);
      for (size_t i = 0; i < rows && !output.rows_are_resident; ++i) {
        for (size_t head = 0; head < heads; ++head) {
          sequences_[i]->set->WriteRow(output.layer, static_cast<int>(head), sequences_[i]->position,
                                       output.kv_rows + (i * heads + head) * row_bytes);
        }
      }
    }
    void AwaitSlots(int layer, SlotLists& lists) override {
      rank_.calls += absl::StrCat(" attend ", layer);
      const int group = rank_.layout_.group_size();
      for (size_t i = 0; i < sequences_.size(); ++i) {
        for (int head = 0; head < rank_.layout_.num_kv_heads; ++head) {
          const std::span<const uint32_t> slots = sequences_[i]->set->Slots(layer, head);
          if (i > 0 || !options_.per_query_head) {
            lists.Add(slots, group);
            continue;
          }
          for (int h = 0; h < group; ++h) lists.Add(slots.first(slots.size() - head * group - h), 1);
        }
      }
    }
    std::span<const PartialAttention> AwaitPartials(int) override {
      partials_.clear();
      for (const int head : {1, 3}) {
        if (!options_.corrects) break;
        partials_.push_back({.row = 0, .kv_head = head, .o = partial_o_.data(), .lse = partial_lse_.data()});
      }
      return partials_;
    }

   private:
    Rank& rank_;
    const std::span<Sequence*> sequences_;
    const StepOptions options_;
    std::vector<float> partial_o_;
    const std::vector<float> partial_lse_ = {2, 3};
    std::vector<PartialAttention> partials_;
  };

  const SelectionSpec spec_{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  ModelConfig config_;
  KvLayout layout_;
  std::unique_ptr<Backend> backend_;
  std::optional<SlotPool> slots_;
  std::vector<Published> of_pieces_;
};

float LargestDifference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_FALSE(std::isnan(a[i]) || std::isnan(b[i])) << i;
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

class ShardedBackendTest : public testing::TestWithParam<std::vector<int>> {};

TEST_P(ShardedBackendTest, ComputesWhatOneGpuComputes) {
  Rank one({0}), several(GetParam());
  for (const uint32_t prompt : {1u, 5u, 65u, 150u}) {
    Sequence a = one.Prefill(prompt, prompt), b = several.Prefill(prompt, prompt);
    EXPECT_LT(LargestDifference(a.prompt_logits, b.prompt_logits), kLogitTolerance) << prompt;
    for (int step = 0; step < 70; ++step) {
      const StepOptions options{.slots_come_first = step % 2 == 1 && prompt > 4,
                                .corrects = step % 5 == 4,
                                .per_query_head = step % 3 == 2 && prompt > 8};
      const std::vector<float> expected = one.DecodeAlone(a, options), got = several.DecodeAlone(b, options);
      EXPECT_LT(LargestDifference(expected, got), kLogitTolerance) << prompt << ", step " << step;
      // Nothing has been added up before the first layer: all heads lie where those of one GPU do.
      EXPECT_EQ(several.published[0].rows, one.published[0].rows);
      EXPECT_EQ(several.published[0].queries, one.published[0].queries);
      EXPECT_EQ(several.published[0].hidden, one.published[0].hidden);
      for (int layer = 0; layer < kModel.num_layers; ++layer) {
        EXPECT_LT(LargestDifference(one.published[layer].prediction, several.published[layer].prediction),
                  kLogitTolerance);
        EXPECT_LT(LargestDifference(one.published[layer].hidden, several.published[layer].hidden), kLogitTolerance);
      }
    }
  }
}

TEST_P(ShardedBackendTest, PromptsArePublishedWithAllHeads) {
  Rank one({0}), several(GetParam());
  const Sequence a = one.Prefill(3, 64), b = several.Prefill(3, 64);  // the last chunk is one token
  EXPECT_EQ(several.published[0].rows, one.published[0].rows);
  EXPECT_EQ(several.published[0].queries, one.published[0].queries);
  EXPECT_LT(LargestDifference(one.published[2].queries, several.published[2].queries), kLogitTolerance);
}

// Rows and queries that are sent, the prompt's end and what is decoded behind it have the bits of chunks.
TEST_P(ShardedBackendTest, LayerByLayerAPromptHasTheBitsOfChunks) {
  for (const std::vector<int>& gpus : {std::vector<int>{0}, GetParam()}) {
    Rank rank(gpus);
    for (const uint32_t prompt : {1u, 2u, 64u, 65u, 66u, 150u, 193u}) {
      Sequence chunked = rank.Prefill(prompt, prompt);
      const std::vector<Published> of_chunks = rank.published;
      Sequence layered = rank.PrefillByLayer(prompt, prompt);
      EXPECT_EQ(layered.prompt_logits, chunked.prompt_logits) << prompt;
      for (int layer = 0; layer < kModel.num_layers; ++layer) {
        EXPECT_EQ(rank.published[layer].rows, of_chunks[layer].rows) << prompt << ", layer " << layer;
        EXPECT_EQ(rank.published[layer].queries, of_chunks[layer].queries) << prompt << ", layer " << layer;
      }
      for (int step = 0; step < 3; ++step) EXPECT_EQ(rank.DecodeAlone(layered), rank.DecodeAlone(chunked));
    }
  }
}

TEST_P(ShardedBackendTest, ARowHasItsBitsWhateverTheOthersAre) {
  Rank rank(GetParam());
  std::vector<Sequence> alone, together;
  for (const uint32_t prompt : {9u, 100u, 33u}) {
    alone.push_back(rank.Prefill(prompt, prompt));
    together.push_back(rank.Prefill(prompt, prompt));
  }
  std::vector<Sequence*> batch;
  for (Sequence& sequence : together) batch.push_back(&sequence);
  for (int step = 0; step < 3; ++step) {
    const std::vector<std::vector<float>> logits = rank.Decode(batch);
    for (size_t i = 0; i < batch.size(); ++i) EXPECT_EQ(rank.DecodeAlone(alone[i]), logits[i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, ShardedBackendTest,
                         testing::Values(std::vector<int>{0, 1}, std::vector<int>{2, 1}, std::vector<int>{0, 1, 2, 3}));

// Slots that need nothing of a layer let the GPU go on at once, if they are there; the cache rank does not wait for
// them if they are late.
TEST(ShardedBackend, ALayerIsPublishedBeforeSlotsThatAreLate) {
  Rank early({0}), late({0});
  Sequence a = early.Prefill(1, 70), b = late.Prefill(1, 70);
  for (int step = 0; step < 3; ++step) {
    const std::vector<float> logits = early.DecodeAlone(a, {.slots_come_first = true});
    EXPECT_EQ(late.DecodeAlone(b, {.slots_come_first = true, .slots_are_late = true}), logits);
    EXPECT_EQ(early.calls, " attend 0 publish 0 attend 1 publish 1 attend 2 publish 2");
    EXPECT_EQ(late.calls, " publish 0 attend 0 publish 1 attend 1 publish 2 attend 2");
  }
}

TEST(ShardedBackend, GpusThatDoNotReachEachOtherAddUpThroughHostMemory) {
  Rank direct({0, 1});
  setenv("WINNOW_HOST_GPU_NO_PEERS", "1", 1);
  Rank through_host({0, 1});
  unsetenv("WINNOW_HOST_GPU_NO_PEERS");
  EXPECT_TRUE(direct.backend().warnings().empty());
  ASSERT_EQ(through_host.backend().warnings().size(), 1u);
  EXPECT_THAT(through_host.backend().warnings()[0], HasSubstr("cannot reach the memory of GPU"));
  EXPECT_THAT(through_host.backend().warnings()[0], HasSubstr("added up through host memory"));
  Sequence a = direct.Prefill(1, 70), b = through_host.Prefill(1, 70);
  EXPECT_EQ(a.prompt_logits, b.prompt_logits);
  for (int step = 0; step < 3; ++step) EXPECT_EQ(direct.DecodeAlone(a), through_host.DecodeAlone(b));
}

TEST(ShardedBackend, SaysWhatItIs) {
  Rank one({0}), two({0, 1});
  EXPECT_EQ(one.backend().numerics(), "cuda-9.0/bf16/bf16");
  EXPECT_EQ(two.backend().numerics(), "cuda-9.0/bf16/bf16/tp2") << "sums are added up in another order";
  EXPECT_THAT(two.backend().description(), HasSubstr("GPUs 0 and 1, host memory, PCI none:0 and none:1"));
  EXPECT_THAT(two.backend().memory_plan().ToString(), HasSubstr("of the memory of each of GPUs 0 and 1 available"));
  const auto& whole = one.backend().memory_plan();
  const auto& half = two.backend().memory_plan();
  EXPECT_EQ(half.slot_bytes * 2, whole.slot_bytes) << "each has half of the heads";
  EXPECT_EQ(half.prefill_bytes * 2, whole.prefill_bytes);
  EXPECT_LT(half.weights_bytes, whole.weights_bytes * 3 / 4);
}

TEST(ShardedBackend, SaysWhyGpusCannotShareAModel) {
  const ModelConfig config = LoadModelConfig(Folder().path()).value();
  const auto why = [&](const ModelConfig& config, const std::vector<int>& gpus) {
    BackendOptions options;
    options.config = &config;
    options.model_name = "some/model";
    const absl::Status status = NewDeviceBackend(options, gpus).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  ModelConfig of_two = config;
  of_two.num_kv_heads = 2;
  EXPECT_EQ(
      why(of_two, {0, 1, 2, 3}),
      "some/model: 4 GPUs cannot share 8 query heads, 2 kv heads and an intermediate size of 96: each of them has "
      "to be divisible by 4");
  EXPECT_EQ(why(config, {5, 6}), "--tensor-parallel=2: GPU 6 was asked for, and there are 6");
}

TEST(ShardedBackend, AGpuThatFailsFreesTheOthers) {
  Rank rank({0, 1});
  Sequence sequence = rank.Prefill(1, 20);
  rank.DecodeAlone(sequence);
  std::ofstream(Folder().path() + "/fault") << getpid() << " 1";
  Sequence* one[] = {&sequence};
  EXPECT_TRUE(rank.Decode(one).empty());
  std::filesystem::remove(Folder().path() + "/fault");
  EXPECT_EQ(rank.forward().status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(rank.forward().status().message()), HasSubstr("GPU 1, decode of 1 rows"));
  EXPECT_THAT(rank.backend().Dump(), HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_TRUE(rank.Decode(one).empty()) << "for good";
}

}  // namespace
}  // namespace winnow::test
