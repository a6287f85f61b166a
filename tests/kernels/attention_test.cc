#include <algorithm>
#include <numeric>

#include "tests/kernels/attention_reference.h"
#include "tests/kernels/kernel_test.h"

namespace winnow {
namespace {

class AttentionTest : public KernelTest {};
WINNOW_FOR_EACH_TABLE(AttentionTest);

// One list per row and kv head, or lists of which the i-th is read by the next list_heads[i] query heads.
struct DecodeProblem {
  DecodeProblem(const KernelTable& table, int rows, int kv_heads, int group, int head_dim, Dtype dtype,
                const std::vector<uint32_t>& counts, const std::vector<uint32_t>& list_heads = {})
      : kernels(table),
        rows(rows),
        kv_heads(kv_heads),
        group(group),
        head_dim(head_dim),
        counts(counts),
        list_heads(list_heads) {
    std::mt19937 random(head_dim * 131 + group * 17 + counts[0]);
    q = RandomFloats(random, static_cast<size_t>(rows) * kv_heads * group * head_dim);
    const uint32_t total = std::accumulate(counts.begin(), counts.end(), 0u);
    const uint32_t num_slots = total + 50;
    const std::vector<float> pool_values = RandomFloats(random, static_cast<size_t>(num_slots) * 2 * head_dim);
    std::vector<uint32_t> order(num_slots);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random);
    // Slots that no list names hold NaN.
    pool = TypedRows(pool_values, head_dim, dtype);
    for (uint32_t i = total; i < num_slots; ++i) {
      const size_t row_bytes = RowBytes(head_dim, dtype);
      std::fill_n(pool.bytes.begin() + order[i] * row_bytes, row_bytes, 0xff);
    }
    uint32_t first = 0;
    for (uint32_t count : counts) {
      lists.emplace_back(order.begin() + first, order.begin() + first + count);
      first += count;
    }
  }

  uint32_t HeadsOf(size_t list) const { return list_heads.empty() ? group : list_heads[list]; }
  // The list that a row's first head reads.
  size_t FirstList(int row) const {
    size_t list = 0;
    for (uint32_t heads = 0; heads < static_cast<uint32_t>(row * kv_heads * group); ++list) heads += HeadsOf(list);
    return list;
  }

  // Rows [begin, end) as one call.
  void Run(Executor& executor, int begin, int end, std::vector<float>& out, std::vector<float>& lse) {
    std::vector<const uint32_t*> slots;
    size_t head_slots = 0;
    const size_t first = FirstList(begin);
    for (size_t i = first; i < FirstList(end); ++i) {
      slots.push_back(lists[i].data());
      head_slots += lists[i].size() * HeadsOf(i);
    }
    const size_t num_heads = static_cast<size_t>(end - begin) * kv_heads * group;
    const size_t scratch_bytes = DecodeAttentionScratchBytes(head_slots, num_heads, head_dim);
    std::vector<uint8_t> scratch(scratch_bytes + 64, 0xff);
    DecodeAttentionParams params;
    const int64_t first_head = static_cast<int64_t>(begin) * kv_heads * group;
    params.q = q.data() + first_head * head_dim;
    params.num_rows = end - begin;
    params.num_query_heads = kv_heads * group;
    params.num_kv_heads = kv_heads;
    params.head_dim = head_dim;
    params.scale = scale();
    params.score_cap = score_cap;
    params.slot_pool = pool.data();
    params.kv_dtype = pool.dtype;
    params.slots = slots.data();
    params.slot_counts = counts.data() + first;
    if (!list_heads.empty()) params.list_heads = list_heads.data() + first;
    params.out = out.data() + first_head * head_dim;
    params.lse = lse.data() + first_head;
    params.scratch = scratch.data();
    kernels.decode_attention(executor, params);
    for (size_t i = scratch_bytes; i < scratch.size(); ++i) ASSERT_EQ(scratch[i], 0xff) << "wrote past the scratch";
  }

  void Check(const std::vector<float>& out, const std::vector<float>& lse) const {
    size_t head = 0;
    for (size_t list = 0; list < lists.size(); ++list) {
      std::vector<const float*> keys;
      for (uint32_t slot : lists[list]) keys.push_back(pool.values.data() + static_cast<size_t>(slot) * 2 * head_dim);
      for (uint32_t h = 0; h < HeadsOf(list); ++h, ++head) {
        const AttentionReference ref = Attend(q.data() + head * head_dim, keys, head_dim, scale(), score_cap);
        const double relative = RelativeTolerance(ref, pool.dtype, head_dim, keys.size());
        for (int d = 0; d < head_dim; ++d) {
          ASSERT_NEAR(out[head * head_dim + d], ref.out[d], relative * ref.mass[d] + 1e-6)
              << "list " << list << " head " << h;
        }
        ASSERT_NEAR(lse[head], ref.lse, relative + 4 * kF32Epsilon * std::fabs(ref.lse));
      }
    }
  }

  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
  size_t num_heads() const { return static_cast<size_t>(rows) * kv_heads * group; }

  const KernelTable& kernels;
  int rows;
  int kv_heads;
  int group;
  int head_dim;
  std::vector<uint32_t> counts, list_heads;
  float score_cap = 0;
  std::vector<float> q;
  TypedArray pool;
  std::vector<std::vector<uint32_t>> lists;
};

TEST_P(AttentionTest, DecodeMatchesDoubles) {
  struct Shape {
    int rows, kv_heads, group, head_dim;
  };
  std::vector<Shape> shapes;
  for (int head_dim : {6, 16, 32, 64, 80, 96, 128, 192, 256}) shapes.push_back({2, 2, 4, head_dim});
  for (int group = 1; group <= 9; ++group) shapes.push_back({1, 3, group, 64});
  for (Dtype dtype : kRowDtypes) {
    for (const Shape& s : shapes) {
      SCOPED_TRACE(testing::Message() << DtypeName(dtype) << " group " << s.group << " head_dim " << s.head_dim);
      std::vector<uint32_t> counts;
      const uint32_t sizes[] = {1, 300, 17, 256, 600, 15, 257, 16};
      for (int i = 0; i < s.rows * s.kv_heads; ++i) counts.push_back(sizes[(i + s.group) % 8]);
      DecodeProblem problem(kernels(), s.rows, s.kv_heads, s.group, s.head_dim, dtype, counts);
      std::vector<float> out(problem.num_heads() * s.head_dim, kPoison);
      std::vector<float> lse(problem.num_heads(), kPoison);
      problem.Run(executor(2), 0, s.rows, out, lse);
      problem.Check(out, lse);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(AttentionTest, DecodeOfEveryShortList) {
  std::vector<uint32_t> counts(70);
  std::iota(counts.begin(), counts.end(), 1u);
  for (Dtype dtype : kRowDtypes) {
    DecodeProblem problem(kernels(), 70, 1, 3, 64, dtype, counts);
    std::vector<float> out(problem.num_heads() * 64, kPoison);
    std::vector<float> lse(problem.num_heads(), kPoison);
    problem.Run(executor(2), 0, 70, out, lse);
    problem.Check(out, lse);
  }
}

// Of each row's two groups of four, some share one list, some have a list per head, and some split otherwise.
const std::vector<uint32_t> kMixedListHeads = {4, 1, 1, 1, 1, 1, 1, 1, 1, 4, 4, 4, 2, 2, 3, 1};
const std::vector<uint32_t> kMixedCounts = {5, 900, 256, 257, 1, 64, 513, 2000, 31, 33, 700, 15, 255, 512, 4, 300};

TEST_P(AttentionTest, DecodeMatchesDoublesWhateverHeadsReadAList) {
  for (Dtype dtype : kRowDtypes) {
    for (int head_dim : {6, 64, 80, 128}) {
      DecodeProblem problem(kernels(), 4, 2, 4, head_dim, dtype, kMixedCounts, kMixedListHeads);
      std::vector<float> out(problem.num_heads() * head_dim, kPoison);
      std::vector<float> lse(problem.num_heads(), kPoison);
      problem.Run(executor(2), 0, 4, out, lse);
      problem.Check(out, lse);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(AttentionTest, DecodeHeadsHaveTheSameBitsAloneAsInAGroup) {
  struct Shape {
    int group, head_dim;
  };
  std::vector<Shape> shapes = {{4, 6}, {4, 80}, {3, 96}, {8, 128}, {20, 256}, {5, 512}};
  for (int group = 1; group <= 9; ++group) shapes.push_back({group, 64});
  const std::vector<uint32_t> counts = {600, 17, 257, 1};
  for (Dtype dtype : kRowDtypes) {
    for (const Shape& s : shapes) {
      DecodeProblem problem(kernels(), 2, 2, s.group, s.head_dim, dtype, counts);
      std::vector<float> shared(problem.num_heads() * s.head_dim, kPoison);
      std::vector<float> shared_lse(problem.num_heads(), kPoison);
      problem.Run(executor(2), 0, 2, shared, shared_lse);
      DecodeProblem alone = problem;
      alone.lists.clear();
      alone.counts.clear();
      for (size_t list = 0; list < counts.size(); ++list) {
        alone.lists.insert(alone.lists.end(), s.group, problem.lists[list]);
        alone.counts.insert(alone.counts.end(), s.group, counts[list]);
      }
      alone.list_heads.assign(alone.lists.size(), 1);
      std::vector<float> out(shared.size(), kPoison), lse(shared_lse.size(), kPoison);
      alone.Run(executor(2), 0, 2, out, lse);
      ASSERT_TRUE(SameBits(out, shared)) << DtypeName(dtype) << " group " << s.group << " head_dim " << s.head_dim;
      ASSERT_TRUE(SameBits(lse, shared_lse)) << DtypeName(dtype) << " group " << s.group;
    }
  }
}

TEST_P(AttentionTest, DecodeRowsDoNotDependOnBatchOrThreadsWhateverHeadsReadAList) {
  for (Dtype dtype : kRowDtypes) {
    DecodeProblem problem(kernels(), 4, 2, 4, 64, dtype, kMixedCounts, kMixedListHeads);
    std::vector<float> out(problem.num_heads() * 64, kPoison);
    std::vector<float> lse(problem.num_heads(), kPoison);
    for (int row = 0; row < 4; ++row) problem.Run(executor(1), row, row + 1, out, lse);
    for (int threads : {1, 2, 3}) {
      std::vector<float> batched_out(out.size(), kPoison), batched_lse(lse.size(), kPoison);
      problem.Run(executor(threads), 0, 4, batched_out, batched_lse);
      ASSERT_TRUE(SameBits(out, batched_out)) << threads << " threads";
      ASSERT_TRUE(SameBits(lse, batched_lse));
    }
  }
}

TEST_P(AttentionTest, DecodeRowsDoNotDependOnBatchOrThreads) {
  const std::vector<uint32_t> counts = {5, 900, 256, 257, 1, 64, 513, 2000, 31, 33};
  for (Dtype dtype : kRowDtypes) {
    DecodeProblem problem(kernels(), 5, 2, 4, 64, dtype, counts);
    std::vector<float> out(problem.num_heads() * 64, kPoison);
    std::vector<float> lse(problem.num_heads(), kPoison);
    for (int row = 0; row < 5; ++row) problem.Run(executor(1), row, row + 1, out, lse);
    for (int threads : {1, 2, 3}) {
      for (int batch : {2, 3, 5}) {
        std::vector<float> batched_out(out.size(), kPoison);
        std::vector<float> batched_lse(lse.size(), kPoison);
        for (int row = 0; row < 5; row += batch) {
          problem.Run(executor(threads), row, std::min(row + batch, 5), batched_out, batched_lse);
        }
        ASSERT_TRUE(SameBits(out, batched_out)) << batch << " rows, " << threads << " threads";
        ASSERT_TRUE(SameBits(lse, batched_lse));
      }
    }
  }
}

// Scores of hundreds, and one key that takes everything.
TEST_P(AttentionTest, DecodeSurvivesLargeScores) {
  for (Dtype dtype : kRowDtypes) {
    DecodeProblem problem(kernels(), 1, 1, 2, 64, dtype, {700});
    for (float& v : problem.q) v = Bf16Of(v * 64);
    std::vector<float> out(2 * 64, kPoison);
    std::vector<float> lse(2, kPoison);
    problem.Run(executor(2), 0, 1, out, lse);
    problem.Check(out, lse);
  }
}

struct PrefillProblem {
  PrefillProblem(const KernelTable& table, int length, int kv_heads, int group, int head_dim, Dtype dtype)
      : kernels(table), length(length), kv_heads(kv_heads), group(group), head_dim(head_dim) {
    std::mt19937 random(length * 13 + head_dim + group);
    q = RandomFloats(random, static_cast<size_t>(length) * kv_heads * group * head_dim);
    head_stride = length + 7;
    const std::vector<float> values = RandomFloats(random, static_cast<size_t>(kv_heads) * head_stride * 2 * head_dim);
    kv = TypedRows(values, head_dim, dtype);
    // Rows above the sequence hold NaN.
    const size_t row_bytes = RowBytes(head_dim, dtype);
    for (int h = 0; h < kv_heads; ++h) {
      std::fill_n(kv.bytes.begin() + (h * head_stride + length) * row_bytes, 7 * row_bytes, 0xff);
    }
  }

  void Run(Executor& executor, int begin, int end, std::vector<float>& out) {
    PrefillAttentionParams params;
    const int64_t offset = static_cast<int64_t>(begin) * kv_heads * group * head_dim;
    params.q = q.data() + offset;
    params.num_queries = end - begin;
    params.first_position = begin;
    params.num_query_heads = kv_heads * group;
    params.num_kv_heads = kv_heads;
    params.head_dim = head_dim;
    params.scale = scale();
    params.score_cap = score_cap;
    params.kv = kv.data();
    params.kv_head_stride = head_stride;
    params.kv_dtype = kv.dtype;
    params.out = out.data() + offset;
    kernels.prefill_attention(executor, params);
  }

  void Check(const std::vector<float>& out, int query_step) const {
    for (int query = 0; query < length; query += query_step) {
      for (int head = 0; head < kv_heads * group; ++head) {
        std::vector<const float*> keys;
        for (int j = 0; j <= query; ++j) {
          keys.push_back(kv.values.data() + ((head / group) * head_stride + j) * 2 * head_dim);
        }
        const size_t offset = (static_cast<size_t>(query) * kv_heads * group + head) * head_dim;
        const AttentionReference ref = Attend(q.data() + offset, keys, head_dim, scale(), score_cap);
        const double relative = RelativeTolerance(ref, kv.dtype, head_dim, keys.size());
        for (int d = 0; d < head_dim; ++d) {
          ASSERT_NEAR(out[offset + d], ref.out[d], relative * ref.mass[d] + 1e-6)
              << "query " << query << " head " << head;
        }
      }
    }
  }

  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
  size_t out_size() const { return q.size(); }

  const KernelTable& kernels;
  int length;
  int kv_heads;
  int group;
  int head_dim;
  int64_t head_stride = 0;
  float score_cap = 0;
  std::vector<float> q;
  TypedArray kv;
};

TEST_P(AttentionTest, PrefillMatchesDoubles) {
  struct Shape {
    int length, kv_heads, group, head_dim;
  };
  std::vector<Shape> shapes = {{1, 2, 4, 64},  {2, 1, 1, 64},  {63, 1, 2, 64},
                               {64, 1, 2, 64}, {65, 2, 2, 64}, {300, 1, 4, 64}};
  for (int head_dim : {6, 16, 32, 80, 96, 128, 192, 256}) shapes.push_back({140, 2, 2, head_dim});
  for (int group = 1; group <= 9; ++group) shapes.push_back({70, 1, group, 64});
  for (Dtype dtype : kRowDtypes) {
    for (const Shape& s : shapes) {
      SCOPED_TRACE(testing::Message() << DtypeName(dtype) << " length " << s.length << " group " << s.group
                                      << " head_dim " << s.head_dim);
      PrefillProblem problem(kernels(), s.length, s.kv_heads, s.group, s.head_dim, dtype);
      std::vector<float> out(problem.out_size(), kPoison);
      problem.Run(executor(2), 0, s.length, out);
      problem.Check(out, s.length > 100 ? 7 : 1);
      if (HasFatalFailure()) return;
    }
  }
}

// Scores of these problems are some units large: caps of 0.5 bend all of them, and a cap of 50 hardly any.
TEST_P(AttentionTest, CappedScoresMatchDoubles) {
  for (Dtype dtype : kRowDtypes) {
    for (const int head_dim : {6, 64, 80, 256}) {
      for (const float cap : {0.5f, 3.0f, 50.0f}) {
        SCOPED_TRACE(testing::Message() << DtypeName(dtype) << " head_dim " << head_dim << " cap " << cap);
        DecodeProblem decode(kernels(), 2, 2, 5, head_dim, dtype, {300, 17, 257, 70});
        decode.score_cap = cap;
        std::vector<float> out(decode.num_heads() * head_dim, kPoison), lse(decode.num_heads(), kPoison);
        decode.Run(executor(2), 0, 2, out, lse);
        decode.Check(out, lse);
        PrefillProblem prefill(kernels(), 140, 2, 3, head_dim, dtype);
        prefill.score_cap = cap;
        out.assign(prefill.out_size(), kPoison);
        prefill.Run(executor(2), 0, 140, out);
        prefill.Check(out, 7);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(AttentionTest, PrefillQueriesDoNotDependOnChunksOrThreads) {
  for (Dtype dtype : kRowDtypes) {
    for (int head_dim : {64, 96}) {
      PrefillProblem problem(kernels(), 450, 2, 3, head_dim, dtype);
      std::vector<float> whole(problem.out_size(), kPoison);
      problem.Run(executor(1), 0, 450, whole);
      for (int threads : {1, 2, 3}) {
        for (int chunk : {1, 37, 64, 200}) {
          std::vector<float> out(problem.out_size(), kPoison);
          for (int begin = 0; begin < 450; begin += chunk) {
            problem.Run(executor(threads), begin, std::min(begin + chunk, 450), out);
          }
          ASSERT_TRUE(SameBits(out, whole)) << "chunk " << chunk << " threads " << threads;
        }
      }
    }
  }
}

}  // namespace
}  // namespace winnow
