#include "cache_rank/select/predictor/query_projection.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "common/model/checkpoint.h"
#include "common/model/model_tensors.h"
#include "model/weights/weights.h"
#include "tests/cache_rank/fake_rank.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<float> Residuals(int rows, int hidden_size) {
  std::vector<float> x;
  for (int i = 0; i < rows * hidden_size; ++i) x.push_back(Noise(40, i));
  return x;
}

// qnorm(Wq norm(x) + b) by the definition, from the tensors that were written.
std::vector<double> ReferenceQueries(const TinyModel& model, int layer, const float* x) {
  const std::vector<TensorToWrite> tensors = TinyTensors(model);
  const auto find = [&](std::string_view suffix) -> const std::vector<float>* {
    for (const TensorToWrite& tensor : tensors) {
      if (tensor.name == LayerTensor(layer, suffix)) return &tensor.values;
    }
    return nullptr;
  };
  const double epsilon = TinyConfigJson(model)["rms_norm_eps"];
  const auto normed = [&](const double* in, int count, const std::vector<float>& weight) {
    double square = 0;
    for (int i = 0; i < count; ++i) square += in[i] * in[i];
    std::vector<double> out;
    for (int i = 0; i < count; ++i) out.push_back(in[i] / std::sqrt(square / count + epsilon) * weight[i]);
    return out;
  };
  const std::vector<double> input(x, x + model.hidden_size);
  const std::vector<double> h = normed(input.data(), model.hidden_size, *find("input_layernorm.weight"));
  const std::vector<float>& wq = *find("self_attn.q_proj.weight");
  const std::vector<float>* bias = find("self_attn.q_proj.bias");
  std::vector<double> q;
  for (int o = 0; o < model.num_query_heads * model.head_dim; ++o) {
    double sum = bias == nullptr ? 0 : (*bias)[o];
    for (int i = 0; i < model.hidden_size; ++i) sum += double{wq[o * model.hidden_size + i]} * h[i];
    q.push_back(sum);
  }
  const std::vector<float>* q_norm = find("self_attn.q_norm.weight");
  if (q_norm == nullptr) return q;
  std::vector<double> out;
  for (int head = 0; head < model.num_query_heads; ++head) {
    const std::vector<double> one = normed(q.data() + head * model.head_dim, model.head_dim, *q_norm);
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

struct Case {
  const char* name;
  TinyModel model;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}
class QueryProjectionTest : public testing::TestWithParam<Case> {
 protected:
  QueryProjectionTest() { WriteTinyCheckpoint(GetParam().model, dir_.path()); }
  const TempDir dir_;
};

TEST_P(QueryProjectionTest, IsTheDefinition) {
  const TinyModel& model = GetParam().model;
  const KernelTable& kernels = *CpuKernels("portable").value();
  const auto projection = QueryProjection::Load(dir_.path(), kernels, Dtype::kF32, 2);
  ASSERT_THAT(projection, IsOkStatus());
  const auto executor = kernels.new_executor(2);
  const std::vector<float> x = Residuals(3, model.hidden_size);
  const size_t features = (*projection)->query_features();
  ASSERT_EQ(features, static_cast<size_t>(model.num_query_heads * model.head_dim));
  std::vector<float> q(3 * features);
  for (int layer = 0; layer < model.num_layers; ++layer) {
    (*projection)->Project(*executor, layer, x.data(), 3, q.data());
    for (int row = 0; row < 3; ++row) {
      const std::vector<double> expected = ReferenceQueries(model, layer, x.data() + row * model.hidden_size);
      // f32 sums of at most 64 terms of about 1, then a norm.
      for (size_t i = 0; i < features; ++i) EXPECT_NEAR(q[row * features + i], expected[i], 2e-5) << layer << " " << i;
    }
  }
}

TEST_P(QueryProjectionTest, HasTheBitsOfTheInferenceRankForEveryKernelSetDtypeAndBatch) {
  const ModelConfig config = LoadModelConfig(dir_.path()).value();
  const std::shared_ptr<const Checkpoint> checkpoint = Checkpoint::Open(dir_.path()).value();
  const int features = config.q_features();
  const std::vector<float> x = Residuals(64, config.hidden_size);
  for (const char* isa : {"portable", "avx2", "avx512", "avx512bf16"}) {
    const auto table = CpuKernels(isa);
    if (!table.ok()) continue;
    const KernelTable& kernels = **table;
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
      SCOPED_TRACE(absl::StrCat(isa, " ", DtypeName(dtype)));
      const auto projection = QueryProjection::Load(dir_.path(), kernels, dtype, 2).value();
      const auto executor = kernels.new_executor(2), single = kernels.new_executor(1);
      std::vector<float> all(64 * features), alone(features), theirs(features);
      projection->Project(*executor, 1, x.data(), 64, all.data());
      const auto weights = ModelWeights::Load(checkpoint, config, kernels, {.compute_dtype = dtype}).value();
      const LayerWeights& layer = weights->layer(1);
      for (const int row : {0, 7, 63}) {
        const float* from = x.data() + row * config.hidden_size;
        projection->Project(*single, 1, from, 1, alone.data());
        EXPECT_EQ(std::memcmp(alone.data(), all.data() + row * features, features * sizeof(float)), 0) << row;
        kernels.decode_matmul(*executor, {.x = from,
                                          .x_stride = config.hidden_size,
                                          .num_rows = 1,
                                          .transform = InputTransform::kRmsNorm,
                                          .norm_weight = layer.input_norm.data(),
                                          .norm_epsilon = config.rms_norm_eps,
                                          .weight = layer.query_projection,
                                          .bias = layer.query_bias.data(),
                                          .y = theirs.data(),
                                          .y_stride = features});
        kernels.query_norm({.q = theirs.data(),
                            .num_rows = 1,
                            .num_query_heads = config.num_query_heads,
                            .head_dim = config.head_dim,
                            .q_norm_weight = layer.q_norm.data(),
                            .norm_epsilon = config.rms_norm_eps});
        EXPECT_EQ(std::memcmp(alone.data(), theirs.data(), features * sizeof(float)), 0) << row;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, QueryProjectionTest,
    testing::Values(
        Case{"Qwen3", {.storage = Dtype::kF32}},
        Case{"Qwen3WholePanels", {.num_query_heads = 8, .num_kv_heads = 4, .storage = Dtype::kF32}},
        Case{"Qwen2", {.family = ModelFamily::kQwen2, .storage = Dtype::kF32, .num_files = 3}},
        Case{"Llama", {.family = ModelFamily::kLlama, .storage = Dtype::kF32}},
        Case{"OddHeads",
             {.hidden_size = 40, .num_query_heads = 10, .num_kv_heads = 2, .head_dim = 6, .storage = Dtype::kF32}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(QueryProjectionLoad, TakesTheMemoryItSaysAndKnowsItsModel) {
  const TempDir dir;
  WriteTinyCheckpoint({}, dir.path());
  const auto projection = QueryProjection::Load(dir.path(), *CpuKernels("portable").value(), Dtype::kBf16, 1).value();
  // 2 layers of Wq 48 -> 64 in bf16, 48 padded to 64, and of a norm of 48 and one of 16 in f32.
  EXPECT_EQ(projection->bytes(), 2u * (64 * 64 * 2 + (48 + 16) * 4));
  EXPECT_EQ(projection->model_digest(), Checkpoint::Open(dir.path()).value()->Digest());
}

TEST(QueryProjectionLoad, RefusesWhatItCannotProjectWith) {
  const KernelTable& kernels = *CpuKernels("portable").value();
  EXPECT_FALSE(QueryProjection::Load("/no/such/folder", kernels, Dtype::kBf16, 1).ok());
  const TempDir dir;
  std::vector<TensorToWrite> tensors = TinyTensors({.storage = Dtype::kF32});
  for (TensorToWrite& tensor : tensors) {
    if (tensor.name == LayerTensor(1, "self_attn.q_proj.weight")) tensor.values[3] = NAN;
  }
  WriteTinyCheckpoint({}, dir.path());
  dir.Write("model.safetensors", SafetensorsBytes(tensors));
  EXPECT_THAT(QueryProjection::Load(dir.path(), kernels, Dtype::kBf16, 1),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("model.layers.1.self_attn.q_proj.weight")));
  EXPECT_THAT(QueryProjection::Load(dir.path(), kernels, Dtype::kF16, 1),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("f16")));
}

// Sequences whose queries are projected here are selected for exactly as if the inference rank had projected them.
class ProjectionOnTheCacheRank : public testing::Test {
 protected:
  ProjectionOnTheCacheRank() {
    WriteTinyCheckpoint({.num_layers = 4}, dir_.path());
    projection_ = QueryProjection::Load(dir_.path(), kernels_, Dtype::kBf16, 1).value();
    spec_ = SmallSpec(Predictor::kDepth);
    spec_.projection = Projection::kCacheRank;
  }
  struct Served {
    std::map<uint32_t, std::vector<std::vector<uint32_t>>> selections;
    std::map<uint32_t, std::map<size_t, FakeSequence::Verification>> verifications;
    bool operator==(const Served&) const = default;
  };

  TestCluster::Options Options() const {
    TestCluster::Options options{.data_plane = TestCluster::SmallDataPlane()};
    options.projection = projection_.get();
    return options;
  }
  // With the projection done by the sender.
  Served Expected(uint32_t lookahead) const {
    SelectionSpec spec = spec_;
    spec.projection = Projection::kInferenceRank;
    spec.lookahead = lookahead;
    TestCluster::Options options{.data_plane = TestCluster::SmallDataPlane()};
    const auto executor = kernels_.new_executor(1);
    const TestCluster* truth = nullptr;
    options.prediction = [&](uint64_t seed, int layer, uint32_t position) {
      const std::vector<float> x =
          truth->TruthHidden(seed, layer - static_cast<int>(lookahead), position, projection_->hidden_size());
      std::vector<float> q(projection_->query_features());
      projection_->Project(*executor, layer, x.data(), 1, q.data());
      return q;
    };
    TestCluster cluster(options, 4);
    truth = &cluster;
    auto rank = cluster.NewRank();
    FakeSequence* sequence = rank->Prefill(1, 13, spec, 150);
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(rank->Decode({sequence}));
    EXPECT_TRUE(rank->errors.empty());
    return {sequence->selections, sequence->verifications};
  }

  const TempDir dir_;
  const KernelTable& kernels_ = *CpuKernels("portable").value();
  std::unique_ptr<const QueryProjection> projection_;
  SelectionSpec spec_;
};

TEST_F(ProjectionOnTheCacheRank, SelectsTheSameAloneOrBatched) {
  for (const uint32_t lookahead : {1u, 2u}) {
    spec_.lookahead = lookahead;
    const Served expected = Expected(lookahead);
    for (const int neighbours : {0, 3, 20}) {
      TestCluster::Options options = Options();
      options.num_threads = neighbours == 3 ? 2 : 1;
      TestCluster cluster(options, 4);
      auto rank = cluster.NewRank();
      std::vector<FakeSequence*> rows{rank->Prefill(1, 13, spec_, 150)};
      for (int i = 0; i < neighbours; ++i) rows.insert(rows.begin(), rank->Prefill(2 + i, 50 + i, spec_, 130 + i));
      for (int i = 0; i < 20; ++i) ASSERT_TRUE(rank->Decode(rows)) << neighbours;
      EXPECT_TRUE(rank->errors.empty()) << rank->errors[0];
      EXPECT_EQ(rows.back()->selections, expected.selections)
          << "lookahead " << lookahead << ", neighbours " << neighbours;
      EXPECT_EQ(cluster.metrics.Snapshot().projections, 20u * (4 - lookahead) * (1 + neighbours));
    }
  }
}

TEST_F(ProjectionOnTheCacheRank, ServesTheSameAfterItsInferenceRankDied) {
  const Served expected = Expected(1);
  for (const int layers_of_last_step : {1, 3}) {
    TestCluster cluster(Options(), 4);
    auto rank = cluster.NewRank();
    FakeSequence* before = rank->Prefill(1, 13, spec_, 150);
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(rank->Decode({before}));
    ASSERT_TRUE(rank->Decode({before}, layers_of_last_step));
    cluster.PumpCacheRank();
    cluster.data_plane->CloseLink(rank->link(), absl::UnavailableError("killed"));
    auto successor = cluster.NewRank();
    FakeSequence* after = successor->Attach(*before);
    while (after->next_position < 165) ASSERT_TRUE(successor->Decode({after}));
    for (const auto& [position, lists] : after->selections)
      EXPECT_EQ(lists, expected.selections.at(position)) << position;
  }
}

// Verifications and projections of one layer share a queue.
TEST_F(ProjectionOnTheCacheRank, IsGuardedAndCorrectedAlike) {
  struct Guard {
    float min_captured_mass;
    Correction correction;
  };
  for (const Guard& guard :
       {Guard{0.98f, Correction::kNone}, Guard{0, Correction::kRemote}, Guard{0.98f, Correction::kRemote}}) {
    SCOPED_TRACE(testing::Message() << guard.min_captured_mass << " " << static_cast<int>(guard.correction));
    spec_.min_captured_mass = guard.min_captured_mass;
    spec_.correction = guard.correction;
    spec_.budget_growth = 2;
    for (const uint32_t lookahead : {1u, 2u}) {
      spec_.lookahead = lookahead;
      const Served expected = Expected(lookahead);
      ASSERT_EQ(expected.verifications.size(), 20u);
      int corrected = 0;
      for (const auto& [position, verifications] : expected.verifications) {
        ASSERT_EQ(verifications.size(), 4u * 2) << "one per layer and kv head";
        for (const auto& [list, verification] : verifications) corrected += verification.entry.rows_read > 0;
      }
      ASSERT_GT(corrected, 20) << "the case must need corrections";
      for (const int neighbours : {0, 3}) {
        TestCluster::Options options = Options();
        options.num_threads = neighbours == 3 ? 2 : 1;
        TestCluster cluster(options, 4);
        auto rank = cluster.NewRank();
        std::vector<FakeSequence*> rows{rank->Prefill(1, 13, spec_, 150)};
        for (int i = 0; i < neighbours; ++i) {
          SelectionSpec other = spec_;
          if (i == 1) other.min_captured_mass = 0, other.correction = Correction::kNone;
          rows.insert(rows.begin(), rank->Prefill(2 + i, 50 + i, other, 130 + i));
        }
        for (int i = 0; i < 20; ++i) ASSERT_TRUE(rank->Decode(rows)) << neighbours;
        EXPECT_TRUE(rank->errors.empty()) << rank->errors[0];
        EXPECT_TRUE((Served{rows.back()->selections, rows.back()->verifications} == expected))
            << "lookahead " << lookahead << ", neighbours " << neighbours;
      }
    }
  }
}

TEST_F(ProjectionOnTheCacheRank, NeedsWeightsOfTheServedShape) {
  TestCluster without({.data_plane = TestCluster::SmallDataPlane()}, 4);
  auto rank = without.NewRank();
  EXPECT_THAT(
      without.data_plane->OpenSequence(
          rank->link(), {.sequence_id = 1, .spec = spec_, .max_positions = 400, .prompt_tokens = 10, .sampling = {}}),
      FailsWith(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("projection"), HasSubstr("--model"))));

  const ServedShape other = SmallShape(3);
  const auto executor = kernels_.new_executor(1);
  CacheRankMetrics metrics;
  EXPECT_THAT(
      DataPlane::Create(TestCluster::SmallDataPlane(), other, &kernels_, executor.get(), &metrics, projection_.get()),
      FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr("num_layers is 3")));
}

TEST_F(ProjectionOnTheCacheRank, ARankWithoutWeightsTakesNoResiduals) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()}, 4);
  auto rank = cluster.NewRank();
  FakeSequence* sequence = rank->Prefill(1, 22, SmallSpec(Predictor::kDepth), 150);
  cluster.PumpCacheRank();
  rank->SendPlan({sequence});
  sequence->spec.projection = Projection::kCacheRank;
  rank->SendLayer(0);
  cluster.PumpCacheRank();
  EXPECT_EQ(cluster.metrics.Snapshot().frames_malformed, 1u);
}

}  // namespace
}  // namespace winnow::test
