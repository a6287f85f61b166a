#include "tools/bench/gpu/checks/cache_gpu_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "common/model/checkpoint.h"
#include "common/model/model_tensors.h"
#include "common/model/tensor_elements.h"
#include "common/selection/attended_set.h"
#include "common/selection/mass_positions.h"

namespace winnow {

CacheGpuReference::CacheGpuReference(const CacheGpu& gpu, const KernelTable& kernels)
    : gpu_(gpu), kernels_(kernels), spec_(gpu.spec()), executor_(kernels.new_executor(1)) {
  spec_.key_copy = KeyCopy::kNone;
  KvLayout layout = gpu.layout();
  layout.dtype = Dtype::kF32;
  model_ = {.group_size = layout.group_size(),
            .head_dim = layout.head_dim,
            .dtype = Dtype::kF32,
            .attention_scale = gpu.attention_scale(),
            .rope = gpu.rope()};
  if (spec_.predictor == Predictor::kDepth) {
    absl::StatusOr<std::unique_ptr<const QueryProjection>> projection =
        QueryProjection::Load(gpu.model_dir(), kernels, Dtype::kBf16, 1);
    WINNOW_CHECK(projection.ok());
    projection_ = *std::move(projection);
    LoadQueryWeights();
  }
  pool_ = KvBlockPool::Create(size_t{1} << 30, layout).value();
  for (int row = 0; row < gpu.max_rows(); ++row) {
    Sequence& sequence = sequences_.emplace_back();
    if (!gpu.sits(row)) continue;
    sequence.kv = std::make_unique<SequenceKv>(SequenceKv::Create(pool_.get(), &kernels, layout,
                                                                  gpu.position(row, gpu.options().num_plans),
                                                                  IndexLayoutFor(spec_))
                                                   .value());
    const uint32_t first = gpu.position(row, 0);
    Append(row, 0, first);
    for (int l = 0; l < layout.num_layers; ++l) {
      sequence.rings.emplace_back(RingQueries(spec_), static_cast<size_t>(layout.num_query_heads) * layout.head_dim);
      for (uint32_t p = gpu.first_past(row); p < first; ++p) PushQuery(row, l, p, gpu.PastQuery(row, l, p));
    }
  }
}

void CacheGpuReference::LoadQueryWeights() {
  const std::unique_ptr<Checkpoint> checkpoint = Checkpoint::Open(gpu_.model_dir()).value();
  const auto load = [&](int layer, std::string_view name, size_t elements) {
    const absl::StatusOr<TensorView> tensor = checkpoint->Find(LayerTensor(layer, name));
    WINNOW_CHECK(tensor.ok());
    std::vector<float> values;
    AppendAsF32(*tensor, 0, elements, values);
    return values;
  };
  const size_t hidden_size = gpu_.options().hidden_size;
  const size_t features = static_cast<size_t>(layout().num_query_heads) * layout().head_dim;
  for (int layer = 0; layer < layout().num_layers; ++layer) {
    query_weights_.push_back(load(layer, "self_attn.q_proj.weight", features * hidden_size));
    input_norms_.push_back(load(layer, "input_layernorm.weight", hidden_size));
  }
}

std::vector<float> CacheGpuReference::KeyOf(int row, size_t list, uint32_t position) const {
  return ScoredKey(gpu_.Row(row, list, position), layout().head_dim, gpu_.spec().key_copy != KeyCopy::kNone);
}

void CacheGpuReference::Append(int row, uint32_t first, uint32_t count) {
  const int heads = layout().num_kv_heads;
  for (int layer = 0; layer < layout().num_layers; ++layer) {
    std::vector<float> rows;
    for (int head = 0; head < heads; ++head) {
      for (uint32_t p = first; p < first + count; ++p) {
        const std::vector<float> key = KeyOf(row, layout().list(layer, head), p);
        rows.insert(rows.end(), key.begin(), key.end());
        rows.resize(rows.size() + key.size());  // values are never scored
      }
    }
    WINNOW_CHECK(sequences_[row].kv->Append(layer, first, count, reinterpret_cast<const std::byte*>(rows.data())).ok());
  }
}

void CacheGpuReference::PushQuery(int row, int layer, uint32_t position, const float* query) {
  const QueryRing::Slot slot = sequences_[row].rings[layer].Push(position);
  std::copy_n(query, layout().num_query_heads * layout().head_dim, slot.pre);
  kernels_.rotate({.q_pre_rope = slot.pre,
                   .num_rows = 1,
                   .num_heads = layout().num_query_heads,
                   .head_dim = layout().head_dim,
                   .positions = &position,
                   .rope_inv_freq = model_.rope.inv_freq.data(),
                   .rope_attention_factor = model_.rope.attention_factor,
                   .q = slot.rotated});
}

std::vector<float> CacheGpuReference::Queries(int plan, const SelectAction& action, int row) {
  const size_t floats = static_cast<size_t>(layout().num_query_heads) * layout().head_dim;
  const uint32_t position = gpu_.position(row, plan);
  std::vector<float> queries(floats);
  if (action.kind == SelectAction::Kind::kQueriesFromPast) {
    PredictFromPast(kernels_, model_.rope, spec_, sequences_[row].rings[action.layer], position, 0,
                    layout().num_query_heads, layout().head_dim, queries.data());
    return queries;
  }
  if (action.kind == SelectAction::Kind::kQueriesOfOwn) {
    std::copy_n(gpu_.PastQuery(row, action.layer, position), floats, queries.begin());
  } else {
    const size_t hidden = gpu_.options().hidden_size;
    projection_->Project(
        *executor_, action.layer,
        gpu_.inputs(plan).hidden.data() + (static_cast<size_t>(action.hidden_layer) * gpu_.max_rows() + row) * hidden,
        1, queries.data());
  }
  kernels_.rotate({.q_pre_rope = queries.data(),
                   .num_rows = 1,
                   .num_heads = layout().num_query_heads,
                   .head_dim = layout().head_dim,
                   .positions = &position,
                   .rope_inv_freq = model_.rope.inv_freq.data(),
                   .rope_attention_factor = model_.rope.attention_factor,
                   .q = queries.data()});
  return queries;
}

double CacheGpuReference::QueryTolerance(int plan, const SelectAction& action, int row) {
  double largest = 0;
  const std::vector<float> queries = Queries(plan, action, row);
  for (const float q : queries) largest = std::max<double>(largest, std::abs(q));
  // Angles are the same f32 products; sines and cosines err by 2 ulp, and a blend weighs what is rotated so.
  if (action.kind != SelectAction::Kind::kQueriesFromHidden) return largest * 0x1p-20;
  // The normed residual x is rounded to bf16, so that element j errs by at most 2^-9 sum_i |x_i w_ji|. The head's norm
  // divides by its root mean square, which errs by as much. Sums in f32, in another order, are far below.
  const size_t hidden_size = gpu_.options().hidden_size, dim = layout().head_dim;
  const float* hidden = gpu_.inputs(plan).hidden.data() +
                        (static_cast<size_t>(action.hidden_layer) * gpu_.max_rows() + row) * hidden_size;
  double squares = 0;
  for (size_t i = 0; i < hidden_size; ++i) squares += double{hidden[i]} * hidden[i];
  const double inverse = 1 / std::sqrt(squares / static_cast<double>(hidden_size));
  double tolerance = 0;
  for (int head = 0; head < layout().num_query_heads; ++head) {
    double worst = 0, square_sum = 0;
    for (size_t j = 0; j < dim; ++j) {
      const float* weight = query_weights_[action.layer].data() + (head * dim + j) * hidden_size;
      double sum = 0, magnitude = 0;
      for (size_t i = 0; i < hidden_size; ++i) {
        const double product = hidden[i] * inverse * input_norms_[action.layer][i] * weight[i];
        sum += product;
        magnitude += std::abs(product);
      }
      worst = std::max(worst, 0x1p-9 * magnitude);
      square_sum += sum * sum;
    }
    const double relative = worst / std::sqrt(square_sum / static_cast<double>(dim));
    // Norm weights are below 2; a rotation mixes two elements.
    tolerance = std::max(tolerance, std::sqrt(2.0) * relative * (2 + largest));
  }
  return tolerance;
}

std::vector<uint32_t> CacheGpuReference::Select(int plan, int row, size_t list, const float* queries) {
  const int layer = static_cast<int>(list) / layout().num_kv_heads,
            head = static_cast<int>(list) % layout().num_kv_heads;
  const HeadQuestion question{.spec = &spec_,
                              .position = gpu_.position(row, plan),
                              .budget_tokens = HeadBudget(spec_, list),
                              .index = sequences_[row].kv->index(layer, head),
                              .first_query_head = head * layout().group_size(),
                              .target = queries};
  std::vector<std::vector<uint32_t>> lists(1);
  // The CPU backend asks for no selection where everything is attended.
  if (AttendsEverything(spec_, list, question.position, question.prompt_tokens)) {
    lists[0].resize(WindowStart(spec_, question.position, question.prompt_tokens) - spec_.sink_tokens);
    std::iota(lists[0].begin(), lists[0].end(), spec_.sink_tokens);
    return lists[0];
  }
  SelectHead(kernels_, model_, question, scratch_, lists);
  return lists[0];
}

std::string CacheGpuReference::CheckSelection(int plan, int row, size_t list, const float* queries,
                                              const std::vector<uint32_t>& selected, Selector selector) {
  SelectionReference reference{.spec = &spec_,
                               .position = gpu_.position(row, plan),
                               .budget = HeadBudget(spec_, list),
                               .queries = queries,
                               .group = layout().group_size(),
                               .head_dim = layout().head_dim,
                               .scale = model_.attention_scale,
                               // bf16, or f16 beside fp8 keys; a quarter more for sums on tensor cores.
                               .query_rounding = gpu_.spec().key_copy == KeyCopy::kNone ? 0x1.4p-9 : 0x1.4p-11,
                               .page_query_rounding = 0x1.4p-9};
  const bool other_bounds = selector == Selector::kGpu && gpu_.spec().key_copy != KeyCopy::kNone;
  for (uint32_t p = 0; p < reference.position; ++p) {
    reference.keys.push_back(KeyOf(row, list, p));
    if (other_bounds) reference.stored_keys.push_back(ScoredKey(gpu_.Row(row, list, p), layout().head_dim, false));
  }
  return reference.Check(selected);
}

CacheGpuReference::Mass CacheGpuReference::MassOf(int plan, int row, size_t list,
                                                  const std::vector<uint32_t>& selected) {
  const uint32_t position = gpu_.position(row, plan), prompt_tokens = gpu_.prompt_tokens(row);
  if (!MeasuresMass(spec_, position, prompt_tokens) || !IsSparse(spec_, list, position, prompt_tokens)) return {NAN, 0};
  const size_t dim = layout().head_dim, group = layout().group_size(), heads = layout().num_kv_heads;
  const SelectAction own{SelectAction::Kind::kQueriesOfOwn, static_cast<int>(list / heads)};
  const std::vector<float> queries = Queries(plan, own, row);
  const double query_error = QueryTolerance(plan, own, row), scale = model_.attention_scale;
  std::vector<bool> attended(position + 1);
  for (uint32_t p = 0; p <= position; ++p) {
    attended[p] = p < spec_.sink_tokens || p >= WindowStart(spec_, position, prompt_tokens);
  }
  for (const uint32_t p : selected) attended[p] = true;
  Mass mass{0, 0};
  for (size_t g = 0; g < group; ++g) {
    const float* query = queries.data() + (list % heads * group + g) * dim;
    std::vector<double> scores(position + 1);
    double error = 0;  // of a score: f32 products summed up one after the other, and what the query errs by
    for (uint32_t p = 0; p <= position; ++p) {
      const std::vector<float> key = KeyOf(row, list, p);
      double magnitude = 0, keys = 0;
      for (size_t d = 0; d < dim; ++d) {
        scores[p] += scale * query[d] * key[d];
        magnitude += std::abs(scale * query[d] * key[d]);
        keys += std::abs(scale * key[d]);
      }
      error = std::max(error, static_cast<double>(dim + 4) * 0x1p-24 * magnitude + query_error * keys);
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    double all = 0, held = 0;
    for (uint32_t p = 0; p <= position; ++p) {
      all += std::exp(scores[p] - most);
      held += attended[p] ? std::exp(scores[p] - most) : 0;
    }
    mass.mass += held / all / static_cast<double>(group);
    // Some thirty joins of sums, of two powers each that err by 2^-22.
    mass.tolerance = std::max(mass.tolerance, 2 * error + 0x1p-16);
  }
  return mass;
}

void CacheGpuReference::EndPlan(int plan) {
  for (int row = 0; row < gpu_.max_rows(); ++row) {
    if (!gpu_.sits(row)) continue;
    const uint32_t position = gpu_.position(row, plan);
    Append(row, position, 1);
    for (int layer = 0; layer < layout().num_layers; ++layer) {
      PushQuery(row, layer, position, gpu_.PastQuery(row, layer, position));
    }
  }
}

}  // namespace winnow
