// Queries of a prompt attend to rows where they are stored, beside sequences that decode.
#include "cache_rank/step/prefix_attender.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/cache_rank/fake_rank.h"

namespace winnow::test {
namespace {

constexpr uint32_t kPrompt = 700, kEndKey = 640;

class PrefixAttenderTest : public testing::Test {
 protected:
  void Start(uint64_t piece_products, int num_threads = 1, int layers = 3) {
    TestCluster::Options options{.data_plane = TestCluster::SmallDataPlane(), .num_threads = num_threads};
    options.data_plane.attender.piece_products = piece_products;
    rank_.reset();
    cluster_ = std::make_unique<TestCluster>(options, layers);
    rank_ = cluster_->NewRank();
    sequence_ = rank_->Prefill(1, 17, SmallSpec(Predictor::kDepth), kPrompt, kPrompt + 50);
    ASSERT_TRUE(cluster_->PumpUntil(*rank_, [&] { return rank_->watermarks[1] == kPrompt; }));
  }
  const KvLayout& layout() const { return cluster_->shape.layout; }

  static float Query(uint32_t position, int head, int d) { return Noise(5, position, head, d); }
  void Ask(int layer, uint32_t first, uint32_t count, uint32_t end_key = kEndKey, size_t cut_off = 0) {
    std::vector<float> queries;
    for (uint32_t p = first; p < first + count; ++p) {
      for (int head = 0; head < layout().num_query_heads; ++head) {
        for (int d = 0; d < layout().head_dim; ++d) queries.push_back(Query(p, head, d));
      }
    }
    std::vector<std::byte> payload(queries.size() * sizeof(float) - cut_off);
    std::memcpy(payload.data(), queries.data(), payload.size());
    wire::FrameHeader header{};
    header.type = wire::FrameType::kPrefixQueries;
    header.flags = end_key;
    header.sequence_id = 1;
    header.attach_epoch = sequence_->attach_epoch;
    header.apply_position = first;
    header.layer_first = static_cast<uint16_t>(layer);
    header.row_count = count;
    rank_->Send(header, payload);
  }
  bool AwaitStates(size_t frames) {
    return cluster_->PumpUntil(*rank_, [&] { return rank_->prefix_states.size() >= frames; });
  }

  // Against softmax attention in f64.
  void Check(const FakeRank::PrefixStates& answer, int layer, uint32_t first, uint32_t count) {
    const int heads = layout().num_query_heads, head_dim = layout().head_dim;
    const size_t state_floats = PrefillStateFloats(head_dim);
    ASSERT_EQ(answer.header.layer_first, layer);
    ASSERT_EQ(answer.header.apply_position, first);
    ASSERT_EQ(answer.header.row_count, count);
    ASSERT_EQ(answer.header.flags, kEndKey);
    ASSERT_EQ(answer.states.size(), count * heads * state_floats);
    for (uint32_t i = 0; i < count; ++i) {
      for (int head = 0; head < heads; ++head) {
        std::vector<double> out(head_dim), mass(head_dim);
        double sum = 0, score_magnitude = 0;
        for (uint32_t p = 0; p < kEndKey; ++p) {
          const std::vector<float> row = cluster_->TruthRow(17, layer, head / layout().group_size(), p);
          double score = 0, magnitude = 0;
          for (int d = 0; d < head_dim; ++d) {
            score += double{Query(first + i, head, d)} * row[d];
            magnitude += std::fabs(double{Query(first + i, head, d)} * row[d]);
          }
          const double weight = std::exp(score);  // the shape's attention_scale is 1
          sum += weight;
          score_magnitude = std::max(score_magnitude, magnitude);
          for (int d = 0; d < head_dim; ++d) out[d] += weight * row[head_dim + d];
          for (int d = 0; d < head_dim; ++d) mass[d] += weight * std::fabs(row[head_dim + d]);
        }
        // Scores err by head_dim roundings, which moves a weight by twice that; sums by one rounding per row.
        const double relative = std::expm1(2 * score_magnitude * head_dim * 0x1p-24) + (kEndKey + 64) * 0x1p-24;
        const float* state = &answer.states[(i * heads + head) * state_floats];
        for (int d = 0; d < head_dim; ++d) {
          ASSERT_NEAR(state[d] / state[head_dim + 1], out[d] / sum, relative * mass[d] / sum + 1e-6)
              << "position " << first + i << " head " << head;
        }
      }
    }
  }

  std::unique_ptr<TestCluster> cluster_;
  std::unique_ptr<FakeRank> rank_;
  FakeSequence* sequence_ = nullptr;
};

TEST_F(PrefixAttenderTest, AnswersWithAttentionOverThePrefix) {
  Start(1, /*num_threads=*/2);
  Ask(1, 650, 7);
  Ask(2, 690, 1);
  ASSERT_TRUE(AwaitStates(2));
  Check(rank_->prefix_states[0], 1, 650, 7);
  Check(rank_->prefix_states[1], 2, 690, 1);
  const CacheRankSnapshot metrics = cluster_->metrics.Snapshot();
  EXPECT_EQ(metrics.prefix_queries, 8u);
  EXPECT_EQ(metrics.prefix_pieces, 2 * kEndKey / kPrefillKeyTile);
  EXPECT_EQ(rank_->Errors(), "");
}

TEST_F(PrefixAttenderTest, PiecesAndThreadsChangeNoBit) {
  std::vector<float> first;
  for (const auto& [products, threads] : {std::pair{uint64_t{1}, 1}, {uint64_t{1} << 40, 1}, {uint64_t{200'000}, 3}}) {
    Start(products, threads);
    Ask(0, 660, 40);
    ASSERT_TRUE(AwaitStates(1));
    if (first.empty()) first = rank_->prefix_states[0].states;
    EXPECT_EQ(std::memcmp(rank_->prefix_states[0].states.data(), first.data(), first.size() * sizeof(float)), 0)
        << products << " products, " << threads << " threads";
  }
}

// Four frames of five pieces each are under way while another sequence takes a step: it waits for a few of them only.
TEST_F(PrefixAttenderTest, SelectionsGoOnBetweenPieces) {
  Start(1);
  FakeSequence* other = rank_->Prefill(2, 18, SmallSpec(Predictor::kExact), 200);
  ASSERT_TRUE(rank_->Decode({other}));
  for (int i = 0; i < 4; ++i) Ask(i % 3, 650 + i, 1);
  rank_->SendPlan({other});
  for (int layer = 0; layer < 3; ++layer) {
    rank_->SendLayer(layer);
    const uint64_t before = cluster_->metrics.Snapshot().prefix_pieces;
    ASSERT_TRUE(cluster_->PumpUntil(*rank_, [&] { return rank_->DeltasComplete(layer); }));
    EXPECT_LE(cluster_->metrics.Snapshot().prefix_pieces - before, 2u) << "layer " << layer;
  }
  rank_->FinishPlan();
  EXPECT_LT(rank_->prefix_states.size(), 4u) << "the case must overlap";
  ASSERT_TRUE(AwaitStates(4));
  for (int i = 0; i < 4; ++i) Check(rank_->prefix_states[i], i % 3, 650 + i, 1);
  EXPECT_EQ(cluster_->CheckSelection(*other, 201, 2, 1, other->selections[201][5]), "");
  EXPECT_EQ(rank_->Errors(), "");
}

TEST_F(PrefixAttenderTest, RefusesRowsThatAreNotThere) {
  Start(1);
  Ask(1, 1000, 1, /*end_key=*/768);
  ASSERT_TRUE(cluster_->PumpUntil(*rank_, [&] { return !rank_->failed.empty(); }));
  EXPECT_EQ(rank_->failed, (std::vector<std::pair<uint64_t, uint32_t>>{{1, 1}}));
  Ask(1, 650, 1);
  ASSERT_TRUE(AwaitStates(1));
}

TEST_F(PrefixAttenderTest, DropsWhatBelongsToNobodyAnyMore) {
  Start(1);
  Ask(0, 650, 3);
  cluster_->transport->Progress();
  ASSERT_TRUE(cluster_->data_plane->ReleaseSequence(1, sequence_->attach_epoch).ok());
  cluster_->PumpCacheRank();
  rank_->Progress();
  EXPECT_TRUE(rank_->prefix_states.empty());
  Ask(0, 650, 3);
  ASSERT_TRUE(cluster_->PumpUntil(*rank_, [&] { return !rank_->fenced.empty(); }));
}

TEST_F(PrefixAttenderTest, ClosesTheLinkOfAPeerThatAsksWhatNoCorrectPeerAsks) {
  const std::vector<std::function<void()>> wrong = {
      [&] { Ask(0, 650, 3, kEndKey, /*cut_off=*/4); },
      [&] { Ask(0, 650, 3, /*end_key=*/650); },  // not whole tiles
      [&] { Ask(0, 650, 3, /*end_key=*/0); },
      [&] { Ask(0, 600, 3); },    // keys of the query's future
      [&] { Ask(0, 650, 257); },  // more than a frame may have
      [&] { Ask(3, 650, 3); },    // no such layer
  };
  for (size_t i = 0; i < wrong.size(); ++i) {
    Start(1);
    wrong[i]();
    cluster_->PumpUntil(*rank_, [] { return false; });
    cluster_->data_plane->Tick(std::chrono::steady_clock::now());
    EXPECT_EQ(cluster_->metrics.Snapshot().frames_malformed, 1u) << "case " << i;
    EXPECT_EQ(cluster_->metrics.Snapshot().channels, 0u) << "case " << i;
  }
}

}  // namespace
}  // namespace winnow::test
