// Attention of prefill queries over rows in blocks, handed on to the attention of the chunk.
#include <numeric>

#include "common/base/kv_layout.h"
#include "tests/kernels/attention_reference.h"
#include "tests/kernels/kernel_test.h"

namespace winnow {
namespace {

class PrefixAttentionTest : public KernelTest {};
WINNOW_FOR_EACH_TABLE(PrefixAttentionTest);

// A prompt of which rows below `prefix` lie in blocks, in any order; the contiguous rows of a chunk there are NaN.
struct Prompt {
  Prompt(const KernelTable& table, uint32_t prefix, int tail, int kv_heads, int group, int head_dim, Dtype dtype)
      : kernels(table), prefix(prefix), tail(tail), kv_heads(kv_heads), group(group), head_dim(head_dim) {
    std::mt19937 random(prefix * 31 + tail * 7 + head_dim + group);
    const size_t length = prefix + tail;
    q = RandomFloats(random, static_cast<size_t>(tail) * kv_heads * group * head_dim);
    kv = TypedRows(RandomFloats(random, kv_heads * length * 2 * head_dim), head_dim, dtype);
    row_bytes = RowBytes(head_dim, dtype);
    const size_t num_blocks = prefix / kBlockTokens;
    std::vector<size_t> place(num_blocks * kv_heads);
    std::iota(place.begin(), place.end(), size_t{0});
    std::shuffle(place.begin(), place.end(), random);
    stored.resize(place.size() * kBlockTokens * row_bytes);
    tail_alone = kv.bytes;
    for (int head = 0; head < kv_heads; ++head) {
      const uint8_t* rows = kv.bytes.data() + head * length * row_bytes;
      for (size_t b = 0; b < num_blocks; ++b) {
        uint8_t* block = stored.data() + place[head * num_blocks + b] * kBlockTokens * row_bytes;
        std::memcpy(block, rows + b * kBlockTokens * row_bytes, kBlockTokens * row_bytes);
        blocks.push_back(block);
      }
      std::fill_n(tail_alone.begin() + head * length * row_bytes, prefix * row_bytes, uint8_t{0xff});
    }
  }

  int num_heads() const { return kv_heads * group; }
  int state_floats() const { return PrefillStateFloats(head_dim); }
  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }

  // Queries [begin, end) of the tail; with a state without the rows of the prefix.
  void Attend(Executor& executor, int begin, int end, const std::vector<float>* state, std::vector<float>* out) const {
    const int64_t first_head = static_cast<int64_t>(begin) * num_heads();
    PrefillAttentionParams params;
    params.q = q.data() + first_head * head_dim;
    params.num_queries = end - begin;
    params.first_position = prefix + begin;
    params.num_query_heads = num_heads();
    params.num_kv_heads = kv_heads;
    params.head_dim = head_dim;
    params.scale = scale();
    params.score_cap = score_cap;
    params.kv = state == nullptr ? kv.bytes.data() : tail_alone.data();
    params.kv_head_stride = prefix + tail;
    params.kv_dtype = kv.dtype;
    params.out = out->data() + first_head * head_dim;
    if (state != nullptr) {
      params.first_key = prefix;
      params.state = state->data() + first_head * state_floats();
    }
    kernels.prefill_attention(executor, params);
  }

  // States of all queries after the prefix, `queries` at a time and in pieces of `tiles` tiles.
  std::vector<float> States(int queries, uint32_t tiles) const {
    std::vector<float> states(static_cast<size_t>(tail) * num_heads() * state_floats(), kPoison);
    const size_t scratch_bytes = PrefixAttentionScratchBytes(head_dim);
    std::vector<uint8_t> scratch(scratch_bytes + 64, 0xff);
    for (int head = 0; head < kv_heads; ++head) {
      for (int begin = 0; begin < tail; begin += queries) {
        for (uint32_t key = 0; key < prefix; key += tiles * kPrefillKeyTile) {
          const size_t first_head = static_cast<size_t>(begin) * num_heads() + head * group;
          kernels.prefix_attention({.q = q.data() + first_head * head_dim,
                                    .q_stride = static_cast<int64_t>(num_heads()) * head_dim,
                                    .num_queries = std::min(queries, tail - begin),
                                    .group_size = group,
                                    .head_dim = head_dim,
                                    .scale = scale(),
                                    .score_cap = score_cap,
                                    .blocks = blocks.data() + head * (prefix / kBlockTokens),
                                    .kv_dtype = kv.dtype,
                                    .first_key = key,
                                    .end_key = std::min(key + tiles * kPrefillKeyTile, prefix),
                                    .state = states.data() + first_head * state_floats(),
                                    .state_stride = static_cast<int64_t>(num_heads()) * state_floats(),
                                    .scratch = scratch.data()});
        }
      }
    }
    for (size_t i = scratch_bytes; i < scratch.size(); ++i) EXPECT_EQ(scratch[i], 0xff) << "wrote past the scratch";
    return states;
  }

  const KernelTable& kernels;
  const uint32_t prefix;
  const int tail, kv_heads, group, head_dim;
  float score_cap = 0;
  size_t row_bytes = 0;
  std::vector<float> q;
  TypedArray kv;
  std::vector<uint8_t> tail_alone, stored;
  std::vector<const void*> blocks;  // [kv_heads][prefix / 32]
};

TEST_P(PrefixAttentionTest, MatchesDoubles) {
  for (Dtype dtype : kRowDtypes) {
    for (int head_dim : {6, 16, 64, 80, 128}) {
      const Prompt prompt(kernels(), 384, 9, 2, 3, head_dim, dtype);
      const std::vector<float> states = prompt.States(5, 1);
      for (int i = 0; i < 9 * prompt.num_heads(); ++i) {
        const int kv_head = i % prompt.num_heads() / prompt.group;
        std::vector<const float*> rows;
        for (uint32_t p = 0; p < prompt.prefix; ++p) {
          rows.push_back(&prompt.kv.values[(kv_head * (prompt.prefix + prompt.tail) + p) * 2 * head_dim]);
        }
        const AttentionReference ref = Attend(&prompt.q[i * head_dim], rows, head_dim, prompt.scale());
        const double relative = RelativeTolerance(ref, dtype, head_dim, rows.size());
        const float* state = &states[static_cast<size_t>(i) * prompt.state_floats()];
        for (int d = 0; d < head_dim; ++d) {
          ASSERT_NEAR(state[d] / state[head_dim + 1], ref.out[d], relative * ref.mass[d] + 1e-6)
              << DtypeName(dtype) << " head_dim " << head_dim << " query " << i;
        }
      }
    }
  }
}

// However prefix and tail are cut: every bit is that of one attention over rows that lie side by side.
TEST_P(PrefixAttentionTest, GoesOnWithTheBitsOfOneAttention) {
  struct Shape {
    uint32_t prefix;
    int tail, kv_heads, group, head_dim;
    float score_cap = 0;
  };
  const std::vector<Shape> shapes = {{128, 1, 1, 1, 64},       {128, 70, 2, 4, 64}, {640, 33, 1, 3, 128},
                                     {1024, 150, 2, 2, 64},    {256, 17, 3, 5, 80}, {384, 21, 1, 2, 6},
                                     {256, 30, 1, 2, 64, 1.5f}};
  for (Dtype dtype : kRowDtypes) {
    for (const Shape& s : shapes) {
      SCOPED_TRACE(testing::Message() << DtypeName(dtype) << " prefix " << s.prefix << " head_dim " << s.head_dim);
      Prompt prompt(kernels(), s.prefix, s.tail, s.kv_heads, s.group, s.head_dim, dtype);
      prompt.score_cap = s.score_cap;
      std::vector<float> whole(prompt.q.size(), kPoison);
      prompt.Attend(executor(2), 0, s.tail, nullptr, &whole);
      std::vector<float> states;
      for (const auto& [queries, tiles] : {std::pair{kMaxPrefixRows / s.group, 1000u}, {1, 1u}, {7, 3u}}) {
        const std::vector<float> again = prompt.States(queries, tiles);
        ASSERT_TRUE(states.empty() || SameBits(again, states)) << queries << " queries, " << tiles << " tiles";
        states = again;
      }
      for (int chunk : {s.tail, 1, 13}) {
        std::vector<float> out(whole.size(), kPoison);
        for (int begin = 0; begin < s.tail; begin += chunk) {
          prompt.Attend(executor(2), begin, std::min(begin + chunk, s.tail), &states, &out);
        }
        ASSERT_TRUE(SameBits(out, whole)) << "chunk " << chunk;
      }
    }
  }
}

}  // namespace
}  // namespace winnow
