#include "cache_rank/select/device/device_selection.h"

#include <vector>

#include "cache_rank/select/device/select_params.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/selection/mass_positions.h"

namespace winnow {
namespace {

device::BlendWeights BlendWeightsOf(TemporalVariant variant) {
  switch (variant) {
    case TemporalVariant::kSoftmax:
      return device::BlendWeights::kSoftmax;
    case TemporalVariant::kRidge:
      return device::BlendWeights::kRidge;
    case TemporalVariant::kClipped:
      return device::BlendWeights::kClipped;
  }
  return device::BlendWeights::kSoftmax;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceSelection>> DeviceSelection::Create(
    const device::DeviceTable* table, device::Device* device, const DeviceKvStore* store, const DevicePlan* plan,
    const Model& model, const device::ExchangeShape& exchange, const device::InferenceInbox* in_place) {
  const SelectionSpec& spec = plan->spec();
  WINNOW_CHECK((in_place != nullptr) == (store->shape().rows == RowTier::kInPlace));
  if (spec.predictor == Predictor::kDepth && model.queries == nullptr) {
    return absl::InvalidArgumentError("predictor depth on a cache rank's GPU needs the model's query projections");
  }
  const std::optional<DeviceIndex> index = IndexIn(store->shape(), spec);
  if (!index.has_value()) return absl::InvalidArgumentError("the store has no room for the specification's index");
  if (spec.scorer != Scorer::kToken && index->page_tokens != spec.page_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("the store keeps pages of ", index->page_tokens,
                                                   " tokens, the specification wants ", spec.page_tokens));
  }
  if (!FitsSelection(spec, store->shape().max_positions)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "contexts of ", store->shape().max_positions,
        " positions are narrowed down by groups of pages: group_candidate_tokens must be less, and not 0"));
  }
  if (LeavesOutGroups(spec, store->shape().max_positions) && !index->page_groups) {
    return absl::InvalidArgumentError(
        "the store keeps no bounds of groups of pages, which group_candidate_tokens of the specification wants");
  }
  if (exchange.max_budget != plan->max_budget() || exchange.max_rows != plan->max_rows() ||
      exchange.lists_per_kv_head != ListsPerKvHead(spec, store->shape().layout.group_size()) ||
      !(exchange.layout == store->shape().layout)) {
    return absl::InvalidArgumentError("the inboxes are of another shape than the plan");
  }
  std::unique_ptr<DeviceSelection> selection(new DeviceSelection(table, store, plan, model, exchange, in_place));
  device::Arena counting(nullptr);
  selection->Carve(counting);
  WINNOW_ASSIGN_OR_RETURN(selection->memory_, device->Allocate(counting.used_bytes()));
  device::Arena arena(selection->memory_->data());
  selection->Carve(arena);
  const device::Stream stream = device->NewStream();
  device->FillAsync(selection->memory_->data(), 0, selection->memory_->bytes(), stream);  // kernels' scratch, counters
  device->CopyAsync(selection->arrays_.inv_freq, model.rope.inv_freq.data(), model.rope.inv_freq.size() * sizeof(float),
                    stream);
  std::vector<float> descending(selection->num_descending());
  for (size_t i = 0; i < descending.size(); ++i) descending[i] = -static_cast<float>(i);
  device->CopyAsync(selection->arrays_.descending, descending.data(), descending.size() * sizeof(float), stream);
  WINNOW_RETURN_IF_ERROR(device->Synchronize(stream));
  selection->rope_ = {.inv_freq = selection->arrays_.inv_freq, .attention_factor = model.rope.attention_factor};
  return selection;
}

size_t DeviceSelection::DeviceBytes(const device::DeviceTable* table, const DeviceKvStore* store,
                                    const DevicePlan* plan, const Model& model, const device::ExchangeShape& exchange,
                                    const device::InferenceInbox* in_place) {
  DeviceSelection selection(table, store, plan, model, exchange, in_place);
  device::Arena counting(nullptr);
  selection.Carve(counting);
  return counting.used_bytes();
}

DeviceSelection::DeviceSelection(const device::DeviceTable* table, const DeviceKvStore* store, const DevicePlan* plan,
                                 const Model& model, const device::ExchangeShape& exchange,
                                 const device::InferenceInbox* in_place)
    : table_(table),
      store_(store),
      plan_(plan),
      index_(IndexIn(store->shape(), plan->spec()).value_or(DeviceIndex{})),
      model_(model),
      exchange_(exchange),
      in_place_(in_place == nullptr ? device::InferenceInbox{} : *in_place) {}

bool DeviceSelection::selects_units() const {
  return SelectsUnits(spec(), layout().group_size());
}

void DeviceSelection::Carve(device::Arena& arena) {
  const size_t rows = plan_->max_rows(), lists = rows * layout().num_kv_heads;
  const int query_features = layout().num_query_heads * layout().head_dim;
  const size_t entries = lists * plan_->max_budget();
  arrays_.inv_freq = arena.TakeArray<float>(layout().head_dim / 2);
  for (float*& queries : arrays_.queries) queries = arena.TakeArray<float>(rows * query_features);
  if (model_.queries != nullptr) {
    arrays_.projected = arena.TakeArray<float>(rows * query_features);
    arrays_.normed = arena.Take(rows * exchange_.hidden_size * DtypeBytes(Dtype::kBf16));
    arrays_.matmul_scratch = arena.Take(table_->matmul->decode_scratch_bytes(static_cast<int>(rows), query_features));
  }
  const PlanBucket greatest{.num_rows = plan_->max_rows(), .max_keys = store_->shape().max_positions};
  arrays_.descending = arena.TakeArray<float>(num_descending());
  if (selects_units()) {
    arrays_.page_scores = arena.TakeArray<float>(lists * layout().group_size() * page_stride());
    arrays_.unit_scratch = arena.Take(table_->page_units->unit_scratch_bytes(UnitParams(greatest, 0)));
  } else {
    arrays_.select_scratch = arena.Take(table_->selection->select_scratch_bytes(SelectParams(greatest, 0)));
  }
  if (!in_place() || stages()) arrays_.selected = arena.TakeArray<uint32_t>(num_selections() * entries);
  arrays_.counts = arena.TakeArray<uint32_t>(num_counts());
  arrays_.count_arrivals = arena.TakeArray<uint32_t>(1);
  for (Delta& delta : arrays_.deltas) {
    if (in_place() && !stages()) continue;
    if (!in_place()) delta.pool_indices = arena.TakeArray<uint32_t>(entries);
    delta.missing = arena.TakeArray<uint32_t>(entries);
    delta.missing_indices = arena.TakeArray<uint32_t>(entries);
  }
  if (!in_place()) {
    arrays_.digest_sums = arena.TakeArray<uint64_t>(lists);
    arrays_.digest_arrivals = arena.TakeArray<uint32_t>(lists);
  }
  arrays_.real_queries = arena.TakeArray<float>(rows * query_features);
  arrays_.masses = arena.TakeArray<device::MeasuredMass>(exchange_.masses_per_plan());
  arrays_.mass_arrivals = arena.TakeArray<uint32_t>(lists);
  arrays_.mass_scratch = arena.Take(table_->mass->mass_scratch_bytes(MassParams(greatest, 0)));
  arrays_.pushed_rows = arena.TakeArray<uint64_t>(1);
  arrays_.done_ctas = arena.TakeArray<uint32_t>(1);
}

void DeviceSelection::Rotate(device::Stream stream, const PlanBucket& bucket, const float* queries, const float* bias,
                             const float* norm_weight, float* out) {
  table_->predict->rotate_queries(
      stream, {.queries = queries,
               .num_rows = bucket.num_rows,
               .num_heads = layout().num_query_heads,
               .head_dim = layout().head_dim,
               .bias = bias,
               .norm_weight = norm_weight,
               .norm_epsilon = model_.queries == nullptr ? 0 : model_.queries->config().rms_norm_eps,
               .positions = plan_->positions(),
               .rope = rope_,
               .out = out});
}

void DeviceSelection::EnqueueOwnQueries(device::Stream stream, const PlanBucket& bucket, int layer,
                                        const device::CacheInbox& inbox) {
  const size_t stride = static_cast<size_t>(exchange_.max_rows) * layout().num_query_heads * layout().head_dim;
  Rotate(stream, bucket, inbox.queries + layer * stride, nullptr, nullptr, queries(layer));
}

void DeviceSelection::EnqueueDepthQueries(device::Stream stream, const PlanBucket& bucket, int layer, int hidden_layer,
                                          const device::CacheInbox& inbox) {
  const DeviceLayerWeights& weights = model_.queries->layer(layer);
  const int hidden_size = exchange_.hidden_size, query_features = layout().num_query_heads * layout().head_dim;
  device::DeviceMatrix projection = weights.qkv;
  projection.out_features = query_features;  // those of the queries come first, whatever else there is
  table_->elementwise->rms_norm(
      stream, {.x = inbox.hidden + static_cast<size_t>(hidden_layer) * exchange_.max_rows * hidden_size,
               .num_rows = bucket.num_rows,
               .hidden_size = hidden_size,
               .weight = weights.input_norm,
               .epsilon = model_.queries->config().rms_norm_eps,
               .out = arrays_.normed});
  table_->matmul->decode_matmul(stream, {.x = arrays_.normed,
                                         .x_stride = hidden_size,
                                         .num_rows = bucket.num_rows,
                                         .weight = projection,
                                         .y = arrays_.projected,
                                         .y_stride = query_features,
                                         .y_dtype = Dtype::kF32,
                                         .scratch = arrays_.matmul_scratch});
  Rotate(stream, bucket, arrays_.projected, weights.qkv_bias, weights.q_norm, queries(layer));
}

void DeviceSelection::EnqueuePastQueries(device::Stream stream, const PlanBucket& bucket, int layer) {
  table_->predict->predict_queries(stream, {.rings = store_->query_rings(layer),
                                            .first_positions = store_->first_query_positions(),
                                            .sequences = plan_->sequences(),
                                            .positions = plan_->positions(),
                                            .num_rows = bucket.num_rows,
                                            .num_heads = layout().num_query_heads,
                                            .head_dim = layout().head_dim,
                                            .window = spec().predictor == Predictor::kTemporal ? spec().window : 0,
                                            .weights = BlendWeightsOf(spec().temporal_variant),
                                            .post_rope = spec().predictor == Predictor::kTemporal && spec().post_rope,
                                            .rope = rope_,
                                            .out = this->queries(layer)});
}

device::SelectParams DeviceSelection::SelectParams(const PlanBucket& bucket, int layer) const {
  device::SelectParams params{.lists = plan_->lists(layer),
                              .num_lists = NumLists(bucket),
                              .blocks = store_->blocks(),
                              .keys = store_->keys(spec().key_copy != KeyCopy::kNone && index_.key_copy),
                              .pages = store_->pages(index_),
                              .head_dim = layout().head_dim,
                              .group = layout().group_size(),
                              .queries = queries(layer),
                              .scale = model_.attention_scale,
                              .max_keys = bucket.max_keys,
                              .max_budget = plan_->max_budget(),
                              .selected = in_place() && !stages() ? InPlaceIndices(layer) : SelectedIn(layer),
                              .counts = counts(layer),
                              .settled = layer > 0,  // the plan's lists were written before the first layer
                              .scratch = arrays_.select_scratch};
  DescribeSelection(spec(), params);
  params.none_below = bucket.none_below;
  return params;
}

device::UnitSelectParams DeviceSelection::UnitParams(const PlanBucket& bucket, int layer) const {
  const bool hierarchical = spec().scorer == Scorer::kHierarchical;
  device::UnitSelectParams params{.list = SelectParams(bucket, layer),
                                  .lists_per_group = exchange_.lists_per_kv_head,
                                  .unit_tokens = hierarchical ? spec().physical_page_tokens : spec().page_tokens,
                                  .reuse_interval = spec().reuse_interval,
                                  .positions = in_place() ? plan_->positions() : nullptr,
                                  .prompt_tokens = plan_->prompt_tokens(),
                                  .num_kv_heads = layout().num_kv_heads,
                                  .scratch = arrays_.unit_scratch};
  params.selected = params.list.selected;
  params.counts = params.list.counts;
  if (tells_at_once()) {
    params.counts = &in_place_.lists[FirstSelection(layer)].selected_count;
    params.count_stride = sizeof(device::AttentionList) / sizeof(uint32_t);
  }
  return params;
}

void DeviceSelection::EnqueueSelect(device::Stream stream, const PlanBucket& bucket, int layer) {
  const bool whole_pages = spec().scorer == Scorer::kPageMinmax || spec().scorer == Scorer::kPageCuboid;
  const device::SelectionKernels& kernels = *table_->selection;
  if (spec().predictor == Predictor::kFixed) {
    const device::SelectParams params = SelectParams(bucket, layer);
    kernels.top_k(stream, arrays_.descending, 0, params.lists, params.num_lists, params.max_keys, params.max_budget,
                  params.selected, params.counts, nullptr);
  } else if (selects_units()) {
    const device::UnitSelectParams params = UnitParams(bucket, layer);
    kernels.score_pages(stream, params.list, arrays_.page_scores, page_stride());
    table_->page_units->select_units(stream, params, arrays_.page_scores, page_stride());
  } else {
    (whole_pages ? kernels.select_pages : kernels.select)(stream, SelectParams(bucket, layer));
  }
  if (in_place() && !stages()) return;
  table_->cache->assign_slots(stream, {.residency = plan_->residency(layer),
                                       .list_positions = in_place() ? plan_->list_positions() : nullptr,
                                       .selected = SelectedIn(layer),
                                       .counts = counts(layer),
                                       .num_lists = NumLists(bucket),
                                       .max_budget = plan_->max_budget(),
                                       .max_pool_slots = store_->shape().pool_slots,
                                       .max_positions = store_->shape().max_positions,
                                       .plan_ptr = plan_->plan(),
                                       .pool_indices = in_place() ? InPlaceIndices(layer) : delta(layer).pool_indices,
                                       .missing = delta(layer).missing,
                                       .missing_indices = delta(layer).missing_indices,
                                       .missing_counts = missing_counts(layer)});
}

void DeviceSelection::EnqueuePush(device::Stream stream, const PlanBucket& bucket, int layer,
                                  const device::InferenceInbox& peer, int max_ctas) {
  device::PushParams push{.lists = plan_->lists(layer),
                          .blocks = store_->blocks(),
                          .row_pool = store_->row_pool(),
                          .row_bytes = layout().row_bytes(),
                          .targets = plan_->targets(layer),
                          .missing = delta(layer).missing,
                          .missing_indices = delta(layer).missing_indices,
                          .missing_counts = missing_counts(layer),
                          .num_lists = NumLists(bucket),
                          .max_budget = plan_->max_budget(),
                          .pushed_rows = arrays_.pushed_rows};
  if (in_place()) {
    if (stages()) table_->cache->push(stream, push);
    if (tells_at_once()) return;
    table_->page_units->tell_counts(stream, {.counts = counts(layer),
                                             .list_positions = plan_->list_positions(),
                                             .num_lists = NumLists(bucket),
                                             .lists_per_group = exchange_.lists_per_kv_head,
                                             .to = &in_place_.lists[FirstSelection(layer)].selected_count,
                                             .stride = sizeof(device::AttentionList) / sizeof(uint32_t)});
    return;
  }
  if (layer == layout().num_layers - 1) EnqueueCounts(stream, bucket, peer);
  const size_t first_list = static_cast<size_t>(layer) * exchange_.lists_per_layer();
  push.pool_indices = delta(layer).pool_indices;
  push.counts = counts(layer);
  push.peer_pool_indices = peer.pool_indices + first_list * exchange_.max_budget;
  push.peer_counts = &peer.lists[first_list].selected_count;
  push.peer_count_stride = sizeof(device::AttentionList) / sizeof(uint32_t);
  push.raise = {.flag = peer.delta_flags + layer, .value = plan_->plan()};
  push.done_ctas = arrays_.done_ctas;
  push.max_ctas = max_ctas;
  table_->cache->push(stream, push);
}

// Before the last push, whose flag tells the peer that they are there.
void DeviceSelection::EnqueueCounts(device::Stream stream, const PlanBucket& bucket,
                                    const device::InferenceInbox& peer) {
  const auto stride = static_cast<int64_t>(exchange_.counts_per_layer() * sizeof(uint32_t));
  const size_t lists = (static_cast<size_t>(NumLists(bucket)) + 3) / 4 * 4;
  table_->step->publish(stream, {.from = arrays_.counts,
                                 .from_stride = stride,
                                 .to = peer.counts,
                                 .to_stride = stride,
                                 .num_rows = 2 * layout().num_layers,
                                 .row_bytes = lists * sizeof(uint32_t),
                                 .flag = peer.counts_flag,
                                 .value = plan_->plan(),
                                 .arrivals = arrays_.count_arrivals});
}

void DeviceSelection::EnqueueAppend(device::Stream stream, const PlanBucket& bucket, int layer,
                                    const device::CacheInbox& inbox, const uint32_t* step_positions) {
  device::AppendParams append = store_->append_params(index_);
  if (!indexes_in_place()) {
    append.rows = static_cast<const std::byte*>(inbox.rows) +
                  static_cast<size_t>(layer) * exchange_.lists_per_layer() * layout().row_bytes();
  }
  append.num_lists = NumLists(bucket);
  append.positions = plan_->list_positions();
  append.lists = plan_->lists(layer);
  store_->Append(stream, append, index_);
  if (!PredictsFromPast(spec().predictor)) return;
  const size_t stride = static_cast<size_t>(exchange_.max_rows) * layout().num_query_heads * layout().head_dim;
  table_->predict->store_queries(stream, {.queries = inbox.queries + layer * stride,
                                          .num_rows = bucket.num_rows,
                                          .num_heads = layout().num_query_heads,
                                          .head_dim = layout().head_dim,
                                          .positions = step_positions == nullptr ? plan_->positions() : step_positions,
                                          .sequences = plan_->sequences(),
                                          .rings = store_->query_rings(layer)});
}

void DeviceSelection::EnqueueRealQueries(device::Stream stream, const PlanBucket& bucket, int layer,
                                         const device::CacheInbox& inbox) {
  const size_t stride = static_cast<size_t>(exchange_.max_rows) * layout().num_query_heads * layout().head_dim;
  Rotate(stream, bucket, inbox.queries + layer * stride, nullptr, nullptr, arrays_.real_queries);
}

device::AttendedMassParams DeviceSelection::MassParams(const PlanBucket& bucket, int layer) const {
  device::AttendedMassParams params{.lists = plan_->lists(layer),
                                    .num_rows = bucket.num_rows,
                                    .num_kv_heads = layout().num_kv_heads,
                                    .blocks = store_->blocks(),
                                    .keys = store_->keys(index_.key_copy),
                                    .head_dim = layout().head_dim,
                                    .group = layout().group_size(),
                                    .scale = model_.attention_scale,
                                    .queries = arrays_.real_queries,
                                    .max_keys = bucket.max_keys,
                                    .positions = plan_->positions(),
                                    .prompt_tokens = plan_->prompt_tokens(),
                                    .interval = kMassInterval,
                                    .plan = plan_->plan(),
                                    .arrivals = arrays_.mass_arrivals,
                                    .scratch = arrays_.mass_scratch};
  if (in_place()) {
    params.selected = stages() ? SelectedIn(layer) : InPlaceIndices(layer);
    params.counts = &in_place_.lists[FirstSelection(layer)].selected_count;
    params.count_stride = sizeof(device::AttentionList) / sizeof(uint32_t);
    params.max_budget = exchange_.max_budget;
    params.staggers = true;
  } else {
    params.residency = plan_->residency(layer);
  }
  return params;
}

void DeviceSelection::EnqueueMass(device::Stream stream, const PlanBucket& bucket, int layer,
                                  const device::InferenceInbox& peer) {
  const size_t first = static_cast<size_t>(layer) * exchange_.lists_per_layer();
  device::AttendedMassParams params = MassParams(bucket, layer);
  params.masses = arrays_.masses + first;
  if (!in_place()) {
    params.peer_masses = peer.masses + first;
    params.peer_stride = static_cast<int64_t>(exchange_.masses_per_plan());
  }
  table_->mass->attended_mass(stream, params);
}

void DeviceSelection::EnqueueDigest(device::Stream stream, const PlanBucket& bucket,
                                    const device::InferenceInbox& peer) {
  table_->digest->stored_digest(stream, {.plan = {.num_layers = layout().num_layers,
                                                  .num_rows = bucket.num_rows,
                                                  .num_kv_heads = layout().num_kv_heads,
                                                  .layer_lists = static_cast<int64_t>(exchange_.lists_per_layer()),
                                                  .row_bytes = layout().row_bytes(),
                                                  .positions = plan_->positions(),
                                                  .plan = plan_->plan(),
                                                  .sums = arrays_.digest_sums,
                                                  .arrivals = arrays_.digest_arrivals},
                                         .lists = plan_->lists(0),
                                         .residency = plan_->residency(0),
                                         .blocks = store_->blocks(),
                                         .row_pool = store_->row_pool(),
                                         .digests = peer.digests,
                                         .odd_digests = static_cast<int64_t>(exchange_.lists_per_layer())});
}

}  // namespace winnow
