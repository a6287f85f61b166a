#include "inference_rank/engine/head_probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "common/model/checkpoint.h"
#include "common/model/model_config.h"
#include "model/transformer.h"
#include "model/weights/weights.h"

namespace winnow {
namespace {

TEST(QueryNeeds, CountsTheFewestRowsThatHoldTheMass) {
  std::mt19937 random(3);
  std::exponential_distribution<float> weight;
  for (const uint32_t length : {1u, 50u, 100u, 130u, 400u}) {
    std::vector<float> softmax(length);
    float sum = 0;
    for (float& x : softmax) sum += x = std::pow(weight(random), 4.0f);
    for (float& x : softmax) x /= sum;
    const QueryNeeds needs = NeedsOf(softmax, 4, 64);
    const uint32_t window = length > 64 ? std::max(4u, (length - 64) / 32 * 32) : 0;
    double inside = 0;
    std::vector<float> outside;
    for (uint32_t j = 0; j < length; ++j) {
      if (j < 4 || j >= window) {
        inside += softmax[j];
      } else {
        outside.push_back(softmax[j]);
      }
    }
    EXPECT_NEAR(needs.window_mass, inside, 1e-6);
    for (size_t i = 0; i < HeadProfile::kMasses.size(); ++i) {
      // One by one the largest that is left.
      std::vector<float> left = outside;
      double mass = inside;
      double count = 0;
      while (mass < HeadProfile::kMasses[i] && !left.empty()) {
        const auto best = std::max_element(left.begin(), left.end());
        mass += *best;
        left.erase(best);
        ++count;
      }
      EXPECT_EQ(needs.tokens_needed[i], count) << length;
    }
    std::sort(outside.begin(), outside.end(), std::greater<>());
    for (size_t i = 0; i < HeadProfile::kRows.size(); ++i) {
      const auto end = outside.begin() + std::min<ptrdiff_t>(outside.size(), HeadProfile::kRows[i]);
      EXPECT_NEAR(needs.mass_with_rows[i], std::accumulate(outside.begin(), end, inside), 1e-6) << length << " " << i;
    }
  }
}

TEST(HeadProbe, SamplesWhatIsMeasuredEvenly) {
  const HeadProbe::Options options{.sink_tokens = 4, .recent_tokens = 64, .queries_per_text = 4};
  EXPECT_EQ(HeadProbe::SampledPositions(options, 1000, 500), (std::vector<uint32_t>{624, 749, 874, 999}));
  EXPECT_EQ(HeadProbe::SampledPositions(options, 102, 51), (std::vector<uint32_t>{100, 101}));
  EXPECT_TRUE(HeadProbe::SampledPositions(options, 100, 50).empty());
  EXPECT_EQ(HeadProbe::SampledPositions(options, 1000, 997), (std::vector<uint32_t>{997, 998, 999}))
      << "no more than there are";
  EXPECT_TRUE(HeadProbe::SampledPositions(options, 1000, 1000).empty());
}

// Passes everything on and keeps a copy.
class Recorder final : public PrefillKv {
 public:
  Recorder(HeadProbe& probe, const KvLayout& layout) : probe_(probe), layout_(layout) {}
  uint32_t first = 0, count = 0;
  std::map<std::pair<int, uint32_t>, std::vector<float>> keys, queries;  // by (layer, position), all heads

  Rows Publish(int layer, const std::byte* kv_rows, const float* q_pre_rope) override {
    const auto* rows = reinterpret_cast<const float*>(kv_rows);
    const int kv = layout_.num_kv_heads, dim = layout_.head_dim, heads = layout_.num_query_heads;
    for (uint32_t i = 0; i < count; ++i) {
      for (int head = 0; head < kv; ++head) {
        const float* key = rows + (static_cast<size_t>(i) * kv + head) * 2 * dim;
        std::vector<float>& all = keys[{layer, first + i}];
        all.insert(all.end(), key, key + dim);
      }
      queries[{layer, first + i}].assign(q_pre_rope + static_cast<size_t>(i) * heads * dim,
                                         q_pre_rope + static_cast<size_t>(i + 1) * heads * dim);
    }
    return probe_.Publish(layer, kv_rows, q_pre_rope);
  }

 private:
  HeadProbe& probe_;
  const KvLayout layout_;
};

TEST(HeadProbe, MeasuresWhatTheModelAttendsTo) {
  const std::string directory = "tests/testdata/tiny/qwen3-headdim";
  const ModelConfig config = LoadModelConfig(directory).value();
  const KernelTable* kernels = CpuKernels("portable").value();
  const std::shared_ptr<const Checkpoint> checkpoint = Checkpoint::Open(directory).value();
  const auto weights = ModelWeights::Load(checkpoint, config, *kernels, {.compute_dtype = Dtype::kF32}).value();
  const auto executor = kernels->new_executor(2);
  Transformer transformer(config, *weights, *kernels, *executor, Dtype::kF32, 64, 64);
  const KvLayout layout = config.kv_layout(Dtype::kF32);
  const HeadProbe::Options options{.sink_tokens = 2, .recent_tokens = 20, .queries_per_text = 5};
  HeadProbe probe(options, layout, transformer, *kernels, *executor);

  std::mt19937 random(9);
  std::vector<QueryNeeds> expected(layout.num_lists());
  std::vector<std::vector<double>> window_masses(layout.num_lists());
  uint64_t queries = 0;
  for (const uint32_t tokens : {150u, 97u}) {
    std::vector<uint32_t> ids(tokens);
    for (uint32_t& id : ids) id = random() % config.vocab_size;
    Recorder recorder(probe, layout);
    ASSERT_TRUE(probe.BeginText(tokens, tokens / 2).ok());
    for (uint32_t first = 0; first < tokens; first += 40) {
      recorder.first = first;
      recorder.count = std::min(40u, tokens - first);
      probe.BeginChunk(first, recorder.count);
      transformer.Prefill({ids.data() + first, recorder.count}, first, false, recorder);
    }
    for (const uint32_t p : HeadProbe::SampledPositions(options, tokens, tokens / 2)) {
      ++queries;
      for (size_t list = 0; list < layout.num_lists(); ++list) {
        const int layer = static_cast<int>(list) / layout.num_kv_heads,
                  head = static_cast<int>(list) % layout.num_kv_heads;
        const int dim = layout.head_dim, half = dim / 2, group = layout.group_size();
        std::vector<float> mean(p + 1);
        for (int g = 0; g < group; ++g) {
          const float* q = recorder.queries.at({layer, p}).data() + (head * group + g) * dim;
          std::vector<double> rotated(dim), weight(p + 1);
          for (int d = 0; d < half; ++d) {
            const double angle = p * static_cast<double>(transformer.rope().inv_freq[d]);
            const double c = std::cos(angle) * transformer.rope().attention_factor;
            const double s = std::sin(angle) * transformer.rope().attention_factor;
            rotated[d] = q[d] * c - q[d + half] * s;
            rotated[d + half] = q[d + half] * c + q[d] * s;
          }
          double sum = 0;
          for (uint32_t j = 0; j <= p; ++j) {
            double dot = 0;
            for (int d = 0; d < dim; ++d) dot += rotated[d] * recorder.keys.at({layer, j})[head * dim + d];
            sum += weight[j] = std::exp(dot * transformer.attention_scale());
          }
          for (uint32_t j = 0; j <= p; ++j) mean[j] += static_cast<float>(weight[j] / sum / group);
        }
        const QueryNeeds needs = NeedsOf(mean, 2, 20);
        expected[list].window_mass += needs.window_mass;
        window_masses[list].push_back(needs.window_mass);
        for (size_t i = 0; i < HeadProfile::kRows.size(); ++i) {
          expected[list].mass_with_rows[i] += needs.mass_with_rows[i];
        }
        for (size_t i = 0; i < 3; ++i) expected[list].tokens_needed[i] += needs.tokens_needed[i];
      }
    }
  }
  EXPECT_EQ(probe.queries(), queries);
  double least = 1;
  for (const HeadProfile::Head& head : probe.Heads(0)) least = std::min(least, 1 - head.window_mass);
  const std::vector<HeadProfile::Head> heads = probe.Heads(least + 1e-9);
  int streaming = 0;
  for (size_t list = 0; list < heads.size(); ++list) {
    EXPECT_NEAR(heads[list].window_mass, expected[list].window_mass / queries, 1e-4) << list;
    // Of ten queries the fifth percentile is the least, in steps of 1/1000.
    EXPECT_NEAR(heads[list].window_mass_p5, *std::min_element(window_masses[list].begin(), window_masses[list].end()),
                1.2e-3);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(heads[list].tokens_needed[i], expected[list].tokens_needed[i] / queries, 0.5) << list;
    }
    for (size_t i = 0; i < HeadProfile::kRows.size(); ++i) {
      EXPECT_NEAR(heads[list].mass_with_rows[i], expected[list].mass_with_rows[i] / queries, 1e-4) << list << " " << i;
    }
    streaming += heads[list].streaming;
  }
  EXPECT_EQ(streaming, 1);
}

}  // namespace
}  // namespace winnow
