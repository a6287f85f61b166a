// Steps that run ahead of the host compute what steps by frames compute, here on a GPU made of host memory
// (tests/support/host_gpu).
#include "inference_rank/backend/device_local_step.h"

#include <gmock/gmock.h>

#include "inference_rank/sequence/sampler.h"
#include "tests/inference_rank/backend/device_local_step_fixture.h"

namespace winnow::test {
namespace {

TEST_P(DeviceLocalStepTest, TokensRowsAndLogitsAreThoseOfStepsByFramesWhateverTheBatch) {
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
    ASSERT_TRUE(client().Launch().ok() && client().Draw({}).ok());
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

// The place of a prompt in prefill, in host memory as all of this GPU's is.
class PromptRows final : public PrefillKv {
 public:
  PromptRows(const KvLayout& layout, uint32_t tokens)
      : layout_(layout), tokens_(tokens), rows_(layout.num_lists() * tokens * layout.row_bytes()) {}
  Rows Destination(int layer, int first_kv_head) override {
    const size_t list = static_cast<size_t>(layer) * layout_.num_kv_heads + first_kv_head;
    return {.kv = rows_.data() + list * tokens_ * layout_.row_bytes(), .head_stride = tokens_};
  }
  Rows Publish(int layer, const std::byte*, const float*) override { return Destination(layer, 0); }
  const std::vector<std::byte>& rows() const { return rows_; }

 private:
  const KvLayout layout_;
  const uint32_t tokens_;
  std::vector<std::byte> rows_;
};

// Steps are launched and end while a chunk of a prompt waits for the GPU, layer after layer: neither shows in the
// other.
using StepsBesidePromptsTest = DeviceLocalStepTest;
TEST_P(StepsBesidePromptsTest, AreThoseAloneAsArePrompts) {
  constexpr uint32_t kPrompt = 100, kFirst = 64;
  std::vector<uint32_t> tokens(kPrompt);
  for (uint32_t i = 0; i < kPrompt; ++i) tokens[i] = i * 7 % kModel.vocab_size;
  Forward& forward = backend_->forward();
  ASSERT_TRUE(forward.RunsBesideSteps());
  const auto prefill = [&](PromptRows& rows) {
    forward.Prefill({tokens.data(), kFirst}, 0, /*last=*/false, rows);
    forward.Prefill({tokens.data() + kFirst, kPrompt - 1 - kFirst}, kFirst, /*last=*/false, rows);
    const std::span<float> logits = forward.Prefill({&tokens.back(), 1}, kPrompt - 1, /*last=*/true, rows);
    return std::vector<float>(logits.begin(), logits.end());
  };
  PromptRows alone(layout_, kPrompt), beside(layout_, kPrompt);
  const std::vector<float> logits_alone = prefill(alone);
  Stream expected = NewStream(1, 40), stream = NewStream(1, 40);
  Sit(0, stream);
  int calls = 0;
  forward.RunBesideSteps([&] {
    ++calls;
    client().Plan(std::vector<StepRow>{
        {.row = 0, .token_id = stream.newest(), .position = stream.position++, .draw = TokenDraw()}});
    ASSERT_TRUE(client().Launch().ok() && client().Draw({}).ok());
    ASSERT_TRUE(client().HasEnded());
    ASSERT_TRUE(client().Complete().ok());
    stream.tokens.push_back(client().drawn_token(0));
  });
  EXPECT_EQ(prefill(beside), logits_alone);
  forward.RunBesideSteps(nullptr);
  EXPECT_EQ(beside.rows(), alone.rows());
  EXPECT_GE(calls, 3 * kModel.num_layers) << "in each layer of each of the three";
  for (int i = 0; i < calls; ++i) expected.tokens.push_back(ArgMax(ByFrames(expected)));
  EXPECT_EQ(stream.tokens, expected.tokens);
  prefill(beside);
  EXPECT_EQ(stream.tokens.size(), calls + 1u) << "with the whole GPU no steps go on";
}

// The masks of a step, said between its logits and its draw, hold for that step and its rows alone.
TEST_P(DeviceLocalStepTest, RowsDrawFromTheirMasks) {
  constexpr int kSteps = 20;
  const auto may_draw = [](int row, int step, uint32_t id) { return row != 1 && (id * 7 + step + row) % 5 == 0; };
  std::vector<std::vector<uint32_t>> expected;
  for (int row = 0; row < 3; ++row) {
    Stream stream = NewStream(row, 40);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<float> logits = ByFrames(stream);
      for (uint32_t id = 0; id < logits.size() && row != 1; ++id) {
        if (!may_draw(row, step, id)) logits[id] = -INFINITY;
      }
      stream.tokens.push_back(ArgMax(logits));
    }
    expected.push_back(stream.tokens);
  }
  std::vector<Stream> streams;
  for (int row = 0; row < 3; ++row) {
    streams.push_back(NewStream(row, 40));
    Sit(row, streams[row]);
  }
  const std::vector<int> masked_rows = {0, 2};
  for (int step = 0; step < kSteps; ++step) {
    std::vector<StepRow> rows;
    for (int row = 0; row < 3; ++row) {
      rows.push_back({.row = row, .position = 40u + step, .draw = TokenDraw(), .wants_logits = row == 2});
      if (step == 0) rows.back().token_id = streams[row].newest();
    }
    client().Plan(rows);
    ASSERT_TRUE(client().Launch().ok());
    for (const int row : masked_rows) {
      const std::span<uint64_t> mask = client().token_mask(row);
      ASSERT_EQ(mask.size(), 2u);
      std::fill(mask.begin(), mask.end(), 0u);
      for (uint32_t id = 0; id < client().vocab_size(); ++id) {
        if (may_draw(row, step, id)) mask[id / 64] |= uint64_t{1} << (id % 64);
      }
    }
    ASSERT_TRUE(client().Draw(masked_rows).ok() && client().Complete().ok());
    for (int row = 0; row < 3; ++row) streams[row].tokens.push_back(client().drawn_token(row));
    for (const float logit : client().logits(2)) EXPECT_TRUE(std::isfinite(logit)) << "as the model gave them";
  }
  for (int row = 0; row < 3; ++row) EXPECT_EQ(streams[row].tokens, expected[row]) << "row " << row;
}

TEST_P(DeviceLocalStepTest, ARowThatSatOutAStepOrChangedHandsGoesOnWhereItStood) {
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
    ASSERT_TRUE(client().Launch().ok() && client().Draw({}).ok() && client().Complete().ok());
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

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceLocalStepTest, kOneGpuOrTwo, NameOf);
INSTANTIATE_TEST_SUITE_P(Ranks, StepsBesidePromptsTest, kOneGpu, NameOf);

}  // namespace
}  // namespace winnow::test
