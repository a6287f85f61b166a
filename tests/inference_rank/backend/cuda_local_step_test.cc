// Steps that run ahead of the host compute what steps by frames compute, here on a GPU made of host memory
// (tests/support/host_gpu).
#include "inference_rank/backend/cuda_local_step.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "inference_rank/backend/cuda_backend.h"
#include "inference_rank/memory/working_set.h"
#include "inference_rank/sequence/sampler.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow::test {
namespace {

const TinyModel kModel{.num_layers = 3,
                       .hidden_size = 64,
                       .intermediate_size = 96,
                       .num_query_heads = 8,
                       .num_kv_heads = 4,
                       .head_dim = 64,
                       .vocab_size = 96};
constexpr uint32_t kMaxContext = 256;

// A backend with slots for a few dense sequences, whose prompts are random rows.
class CudaLocalStepTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN, 1);
    WriteTinyCheckpoint(kModel, folder_.path());
    config_ = LoadModelConfig(folder_.path()).value();
    layout_ = config_.kv_layout(Dtype::kBf16);
    const int gpus[] = {0};
    backend_ =
        NewCudaBackend(
            {.checkpoint = Checkpoint::Open(folder_.path()).value(),
             .config = &config_,
             .max_context_tokens = kMaxContext,
             .prefill_chunk_tokens = 64,
             .needs = {.layout = layout_, .selection = spec_, .max_context_tokens = kMaxContext, .max_running = 6},
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

  Stream NewStream(uint32_t seed, uint32_t prompt) {
    Stream stream{.set = WorkingSet::Create(*slots_, layout_, spec_, kMaxContext, prompt).value(),
                  .position = prompt,
                  .tokens = {seed % kModel.vocab_size}};
    std::mt19937 random(seed);
    std::vector<uint16_t> row(layout_.row_bytes() / sizeof(uint16_t));
    for (uint32_t p = 0; p < prompt; ++p) {
      for (int layer = 0; layer < layout_.num_layers; ++layer) {
        for (int head = 0; head < layout_.num_kv_heads; ++head) {
          for (uint16_t& element : row)
            element = static_cast<uint16_t>(0x3e00 + random() % 0x200 + random() % 2 * 0x8000);
          stream.set->WriteRow(layer, head, p, row.data());
        }
      }
    }
    stream.set->FinishLoad(prompt);
    return stream;
  }

  // The logits of the stream's newest token, by frames and alone; its rows stay.
  std::vector<float> ByFrames(Stream& stream) {
    stream.set->Advance(stream.position);
    Kv kv(*this, stream);
    const uint32_t token = stream.newest();
    const std::span<float> logits = backend_->forward().Decode({&token, 1}, {&stream.position, 1}, kv);
    ++stream.position;
    return {logits.begin(), logits.end()};
  }

  StepClient& client() { return *backend_->step_client(); }
  void Sit(int row, const Stream& stream) {
    client().SetRow(row, stream.set->PagesOfLists(WholeModel(layout_), client().pages_per_list()));
  }
  std::vector<std::byte> StoredRows(const Stream& stream, uint32_t position) const {
    std::vector<std::byte> rows;
    for (int layer = 0; layer < layout_.num_layers; ++layer) {
      for (int head = 0; head < layout_.num_kv_heads; ++head) {
        const auto* row = static_cast<const std::byte*>(stream.set->PlaceOfRow(layer, head, position));
        rows.insert(rows.end(), row, row + layout_.row_bytes());
      }
    }
    return rows;
  }

  class Kv final : public DecodeKv {
   public:
    Kv(CudaLocalStepTest& test, Stream& stream) : test_(test), stream_(stream) {}
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
    CudaLocalStepTest& test_;
    Stream& stream_;
  };

  const TempDir folder_;
  const SelectionSpec spec_{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  ModelConfig config_;
  KvLayout layout_;
  std::unique_ptr<Backend> backend_;
  std::optional<SlotPool> slots_;
};

TEST_F(CudaLocalStepTest, TokensRowsAndLogitsAreThoseOfStepsByFramesWhateverTheBatch) {
  constexpr int kSteps = 70;  // past the end of a page
  const std::vector<uint32_t> prompts = {1, 63, 64, 130, 5};
  std::vector<std::vector<uint32_t>> expected;
  std::vector<std::vector<float>> last_logits;
  std::vector<std::vector<std::byte>> last_rows;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Stream stream = NewStream(i, prompts[i]);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<float> logits = ByFrames(stream);
      stream.tokens.push_back(ArgMax(logits));
      if (step + 1 == kSteps) last_logits.push_back(std::move(logits));
    }
    expected.push_back(stream.tokens);
    last_rows.push_back(StoredRows(stream, stream.position - 1));
  }

  std::vector<Stream> streams;
  for (size_t i = 0; i < prompts.size(); ++i) streams.push_back(NewStream(i, prompts[i]));
  for (size_t i = 0; i < streams.size(); ++i) Sit(static_cast<int>(i), streams[i]);
  // Two steps are under way all the time: the host says the first token alone.
  for (int step = 0; step < kSteps; ++step) {
    std::vector<StepRow> rows;
    for (size_t i = 0; i < streams.size(); ++i) {
      StepRow row{.row = static_cast<int>(i), .position = prompts[i] + step, .draw = TokenDraw()};
      if (step == 0) row.token_id = streams[i].newest();
      if (step + 1 == kSteps) row.draw.reset();
      rows.push_back(row);
    }
    client().Plan(rows);
    ASSERT_TRUE(client().Launch().ok());
    if (step == 0) continue;
    ASSERT_TRUE(client().Complete().ok());
    for (size_t i = 0; i < streams.size(); ++i) streams[i].tokens.push_back(client().drawn_token(static_cast<int>(i)));
  }
  ASSERT_TRUE(client().Complete().ok());
  for (size_t i = 0; i < streams.size(); ++i) {
    const std::span<float> logits = client().logits(static_cast<int>(i));
    EXPECT_EQ(std::vector<float>(logits.begin(), logits.end()), last_logits[i]) << "stream " << i;
    streams[i].tokens.push_back(ArgMax(logits));
    EXPECT_EQ(streams[i].tokens, expected[i]) << "stream " << i;
    EXPECT_EQ(StoredRows(streams[i], prompts[i] + kSteps - 1), last_rows[i]) << "stream " << i;
    EXPECT_EQ(std::memcmp(client().kv_rows(static_cast<int>(i)), last_rows[i].data(), last_rows[i].size()), 0)
        << "what goes to the cache rank, stream " << i;
  }
}

TEST_F(CudaLocalStepTest, ARowThatSatOutAStepOrChangedHandsGoesOnWhereItStood) {
  constexpr int kSteps = 12;
  const auto expected = [&](uint32_t seed, uint32_t prompt) {
    Stream stream = NewStream(seed, prompt);
    for (int step = 0; step < kSteps; ++step) stream.tokens.push_back(ArgMax(ByFrames(stream)));
    return stream.tokens;
  };
  const std::vector<uint32_t> of_first = expected(1, 40), of_second = expected(2, 90);
  Stream first = NewStream(1, 40), second = NewStream(2, 90);
  Sit(0, first);
  Sit(3, second);
  const auto step = [&](std::vector<std::pair<int, Stream*>> rows) {
    std::vector<StepRow> planned;
    for (const auto& [row, stream] : rows) {
      planned.push_back(
          {.row = row, .token_id = stream->newest(), .position = stream->position++, .draw = TokenDraw()});
    }
    client().Plan(planned);
    ASSERT_TRUE(client().Launch().ok() && client().Complete().ok());
    for (const auto& [row, stream] : rows) stream->tokens.push_back(client().drawn_token(row));
  };
  for (int i = 0; i < 4; ++i) step({{0, &first}, {3, &second}});
  for (int i = 0; i < 3; ++i) step({{3, &second}});
  Sit(3, first);  // and the second one has left
  for (int i = 0; i < 3; ++i) step({{3, &first}});
  Sit(1, second);
  for (int i = 0; i < 5; ++i) step({{1, &second}, {3, &first}});
  EXPECT_EQ(first.tokens, of_first);
  EXPECT_EQ(second.tokens, of_second);
}

TEST_F(CudaLocalStepTest, SeveralGpusHaveNone) {
  const int gpus[] = {0, 1};
  const auto backend = NewCudaBackend(
      {.checkpoint = Checkpoint::Open(folder_.path()).value(),
       .config = &config_,
       .max_context_tokens = kMaxContext,
       .prefill_chunk_tokens = 64,
       .needs = {.layout = layout_, .selection = spec_, .max_context_tokens = kMaxContext, .max_running = 2},
       .model_name = "tiny"},
      gpus);
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->step_client(), nullptr);
}

}  // namespace
}  // namespace winnow::test
