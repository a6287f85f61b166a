#include "tests/cache_rank/test_cluster.h"

#include <cmath>

#include "common/base/check.h"
#include "tests/cache_rank/fake_rank.h"

namespace winnow::test {

TestCluster::TestCluster(const Options& options, int num_layers)
    : shape(SmallShape(num_layers)),
      kernels(CpuKernels("portable").value()),
      executor(kernels->new_executor(options.num_threads)),
      transport(NewInprocTransport({.incarnation = 1, .window_bytes = size_t{16} << 20, .ucx_tls = ""})),
      lag_(options.lag),
      hidden_size_(options.projection == nullptr ? 0 : options.projection->hidden_size()),
      prediction_(options.prediction),
      row_scale_(options.row_scale) {
  data_plane =
      DataPlane::Create(options.data_plane, shape, kernels, executor.get(), &metrics, options.projection).value();
  transport->SetHandler([this](Channel& channel, ReceivedFrame frame) { data_plane->HandleFrame(channel, frame); });
}

std::unique_ptr<FakeRank> TestCluster::NewRank(size_t window_bytes) {
  return std::make_unique<FakeRank>(this, window_bytes);
}

bool TestCluster::PumpUntil(FakeRank& rank, const std::function<bool()>& condition) {
  int idle = 0;
  for (int round = 1; idle < 50 * lag_; ++round) {
    if (condition()) return true;
    const int moved = rank.Progress() + transport->Progress();
    const bool worked = round % lag_ == 0 && data_plane->RunOnce();
    idle = moved > 0 || worked ? 0 : idle + 1;
  }
  return condition();
}

void TestCluster::PumpCacheRank(int rounds) {
  for (int i = 0; i < rounds; ++i) {
    transport->Progress();
    data_plane->RunOnce();
  }
}

std::vector<float> TestCluster::TruthRow(uint64_t seed, int layer, int head, uint32_t position) const {
  std::vector<float> row;
  const float scale = row_scale_ ? row_scale_(position) : 1;
  for (int d = 0; d < 2 * shape.layout.head_dim; ++d) {
    row.push_back(scale * Noise(seed, layer * 100 + head, position, d));
  }
  return row;
}

std::vector<float> TestCluster::TruthQuery(uint64_t seed, int layer, uint32_t position) const {
  std::vector<float> q;
  for (int i = 0; i < shape.layout.num_query_heads * shape.layout.head_dim; ++i) {
    q.push_back(2 * Noise(seed, 7000 + layer, i) + Noise(seed, 8000 + layer, position, i));
  }
  return q;
}

std::vector<float> TestCluster::TruthPrediction(uint64_t seed, int layer, uint32_t position) const {
  std::vector<float> q = TruthQuery(seed, layer, position);
  for (size_t i = 0; i < q.size(); ++i) q[i] += 0.3f * Noise(seed, 9000 + layer, position, i);
  return q;
}

std::vector<float> TestCluster::TruthHidden(uint64_t seed, int layer, uint32_t position, int hidden_size) const {
  std::vector<float> x;
  for (int i = 0; i < hidden_size; ++i)
    x.push_back(Noise(seed, 6000, i) + 0.5f * Noise(seed, 6100 + layer, position, i));
  return x;
}

TestCluster::QueryHeads TestCluster::HeadsOf(const FakeSequence& sequence, int head) const {
  const int count = shape.layout.group_size() / sequence.lists_per_head();
  return {head * count, count};
}

std::vector<Vector> TestCluster::Queries(QueryHeads heads, const std::vector<float>& values, uint32_t rotate_to) const {
  std::vector<Vector> queries;
  const int dim = shape.layout.head_dim;
  for (int i = heads.first; i < heads.first + heads.count; ++i) {
    const auto begin = values.begin() + i * dim;
    queries.push_back(RotateReference(Vector(begin, begin + dim), rotate_to, shape.model.rope));
  }
  return queries;
}

std::vector<Vector> TestCluster::Keys(uint64_t seed, int layer, int head, uint32_t count) const {
  std::vector<Vector> keys;
  for (uint32_t p = 0; p < count; ++p) {
    const std::vector<float> row = TruthRow(seed, layer, head, p);
    keys.emplace_back(row.begin(), row.begin() + shape.layout.head_dim);
  }
  return keys;
}

std::string TestCluster::CheckSelection(const FakeSequence& sequence, uint32_t position, int layer, int head,
                                        const std::vector<uint32_t>& selected) const {
  const SelectionSpec& spec = sequence.spec;
  const int dim = shape.layout.head_dim;
  if (const uint32_t anchor = sequence.Anchor(position); anchor != position) {
    return CheckSelection(sequence, anchor, layer, head, selected);
  }
  const QueryHeads heads = HeadsOf(sequence, head);
  const int kv_head = heads.first / shape.layout.group_size();
  const size_t list = layer * shape.layout.num_kv_heads + kv_head;
  if (spec.predictor == Predictor::kFixed) {
    for (uint32_t i = 0; i < selected.size(); ++i) {
      if (selected[i] != spec.sink_tokens + i) return "not the first rows";
    }
    return selected.size() == HeadBudget(spec, list) ? "" : "not the whole budget";
  }
  std::vector<Vector> queries;
  if (PredictsFromPast(spec.predictor)) {
    const uint32_t count = spec.predictor == Predictor::kLast ? 1 : spec.window + 1;
    for (int i = heads.first; i < heads.first + heads.count; ++i) {
      std::vector<Vector> past;
      for (uint32_t p = position - count; p < position; ++p) {
        const std::vector<float> all = TruthQuery(sequence.seed, layer, p);
        const auto begin = all.begin() + i * dim;
        const Vector q(begin, begin + dim);
        past.push_back(spec.post_rope ? RotateReference(q, p, shape.model.rope) : q);
      }
      const Vector predicted = RegressReference(spec.temporal_variant, past);
      queries.push_back(spec.post_rope ? predicted : RotateReference(predicted, position, shape.model.rope));
    }
  } else {
    const bool own = SelectsWithOwnQuery(spec, layer);
    queries = Queries(
        heads, own ? TruthQuery(sequence.seed, layer, position) : TruthPrediction(sequence.seed, layer, position),
        position);
  }
  const std::vector<Vector> keys = Keys(sequence.seed, layer, kv_head, position);
  const uint32_t end = sequence.Window(position);
  if (spec.scorer == Scorer::kHierarchical) {
    WINNOW_CHECK(queries.size() == 1);
    const Vector bounds = HierarchicalReference(queries[0], keys, end, spec.page_tokens, spec.physical_page_tokens);
    return CheckTopK(bounds, selected, spec.sink_tokens, end, std::min(HeadBudget(spec, list), end - spec.sink_tokens),
                     2e-3);
  }
  const Vector importance = ImportanceReference(spec.group_aggregation, queries, keys, shape.model.attention_scale);
  // Angles of up to 400 rad in f32 move scores by about 1e-4; importances follow relatively.
  return CheckTopK(importance, selected, spec.sink_tokens, end,
                   std::min(HeadBudget(spec, list), end - spec.sink_tokens), 2e-3);
}

double TestCluster::Mass(const FakeSequence& sequence, uint32_t position, int layer, int head,
                         const std::vector<uint32_t>& selected) const {
  const QueryHeads heads = HeadsOf(sequence, head);
  const std::vector<Vector> queries = Queries(heads, TruthQuery(sequence.seed, layer, position), position);
  const int kv_head = heads.first / shape.layout.group_size();
  return MassReference(queries, Keys(sequence.seed, layer, kv_head, position + 1), shape.model.attention_scale,
                       sequence.spec.sink_tokens, selected, sequence.Window(position));
}

std::vector<Vector> TestCluster::RealQueries(const FakeSequence& sequence, uint32_t position, int layer,
                                             int head) const {
  return Queries(HeadsOf(sequence, head), TruthQuery(sequence.seed, layer, position), position);
}

Vector TestCluster::RealImportance(const FakeSequence& sequence, uint32_t position, int layer, int head) const {
  return ImportanceReference(sequence.spec.group_aggregation, RealQueries(sequence, position, layer, head),
                             Keys(sequence.seed, layer, head, position), shape.model.attention_scale);
}

}  // namespace winnow::test
