#include "inference_rank/local/local_selection.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_rank/select/device/select_params.h"
#include "cache_rank/select/predictor/from_past.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/model/rope.h"
#include "common/selection/mass_positions.h"
#include "common/selection/spec_traits.h"

namespace winnow {
namespace {

constexpr uint32_t kLeastBucketKeys = 4096;  // of graphs, by the number of keys that their grids cover

// Bits of DecodeVariant::key, from the lowest: kinds, kinds that score no row whole, then these.
constexpr int kDenseBit = 2 * LocalSelection::kMaxKinds, kMeasuresBit = kDenseBit + 1, kKeysBit = kDenseBit + 2;

DeviceSelection::Model ModelOf(const DeviceWeights& weights) {
  const ModelConfig& config = weights.config();
  const RopeTable rope = RopeOfHeads(config, config.rope);
  return {
      .rope = {rope.inv_freq, rope.attention_factor}, .attention_scale = AttentionScale(config), .queries = &weights};
}

}  // namespace

LocalSelection::Together::Together(device::Device& device) : fork_(device.NewEvent()) {
  for (Side& side : sides_) side = {.stream = device.NewStream(), .done = device.NewEvent()};
}
void LocalSelection::Together::Fork() {
  if (kinds_.size() > 1) fork_->Record(stream_);
  for (size_t i = 1; i < kinds_.size(); ++i) fork_->Hold(sides_[i - 1].stream);
}
void LocalSelection::Together::BeginPlan(device::Stream stream) {
  stream_ = stream;
  Fork();
  for (size_t i = 0; i < kinds_.size(); ++i) kinds_[i]->BeginPlan(i == 0 ? stream_ : sides_[i - 1].stream);
}
void LocalSelection::Together::OnHidden(device::Stream stream, int layer) {
  for (ColocatedSelection* kind : kinds_) kind->OnHidden(stream, layer);
}
void LocalSelection::Together::OnRows(int layer) {
  Fork();
  for (ColocatedSelection* kind : kinds_) kind->OnRows(layer);
  for (size_t i = 1; i < kinds_.size(); ++i) {
    sides_[i - 1].done->Record(sides_[i - 1].stream);
    sides_[i - 1].done->Hold(stream_);
  }
}
void LocalSelection::Together::EndPlan() {
  for (ColocatedSelection* kind : kinds_) kind->EndPlan();
}

LocalSelection::LocalSelection(const device::DeviceTable& table, device::Device& device, const DeviceWeights& weights,
                               const DecodeSlots& slots, const Shape& shape)
    : table_(table),
      device_(device),
      slots_(slots),
      model_(ModelOf(weights)),
      shape_(shape),
      peer_(slots.inbox()),
      rows_(shape.max_rows),
      together_(device) {}

absl::StatusOr<std::unique_ptr<LocalSelection>> LocalSelection::Create(const device::DeviceTable& table,
                                                                       device::Device& device,
                                                                       const DeviceWeights& weights,
                                                                       const DecodeSlots& slots,
                                                                       uint32_t num_slot_pages, const Shape& shape) {
  std::unique_ptr<LocalSelection> selection(new LocalSelection(table, device, weights, slots, shape));
  const device::ExchangeShape exchange = Exchange(shape);
  WINNOW_CHECK(slots.shape().exchange().max_budget == exchange.max_budget);
  WINNOW_ASSIGN_OR_RETURN(selection->inbox_memory_, device.Allocate(CacheInboxBytes(exchange)));
  selection->inbox_ = CacheInboxAt(exchange, selection->inbox_memory_->data());
  const device::Stream stream = device.NewStream();
  device.FillAsync(selection->inbox_memory_->data(), 0, selection->inbox_memory_->bytes(), stream);
  WINNOW_RETURN_IF_ERROR(device.Synchronize(stream));
  WINNOW_ASSIGN_OR_RETURN(selection->store_, DeviceKvStore::Create(&table, &device, StoreShape(shape, num_slot_pages),
                                                                   slots.slot_pool(), slots.scales()));
  return selection;
}

absl::StatusOr<LocalSelection::Kind*> LocalSelection::KindOf(const SelectionSpec& of) {
  const SelectionSpec spec = KindSpec(shape_, of);
  std::unique_ptr<Kind>* place = nullptr;
  for (std::unique_ptr<Kind>& kind : kinds_) {
    if (kind != nullptr && kind->spec == spec) return kind.get();
    if (place == nullptr && kind == nullptr) place = &kind;
  }
  // One that has no rows gives way, with the graphs that it is a part of.
  for (auto kind = kinds_.begin(); place == nullptr && kind != kinds_.end(); ++kind) {
    if ((*kind)->num_rows > 0) continue;
    WINNOW_RETURN_IF_ERROR(device_.Synchronize(graph_->stream()));
    graph_->ForgetVariants(uint64_t{1} << (*kind)->index);
    kind->reset();
    place = &*kind;
  }
  if (place == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("rows of ", kMaxKinds, " kinds of selection take part"));
  }
  auto kind = std::make_unique<Kind>();
  kind->spec = spec;
  kind->index = static_cast<int>(place - kinds_.data());
  WINNOW_ASSIGN_OR_RETURN(
      kind->plan, DevicePlan::Create(&table_, &device_, store_.get(), spec, shape_.max_rows, MaxBudget(shape_)));
  WINNOW_ASSIGN_OR_RETURN(kind->selection, DeviceSelection::Create(&table_, &device_, store_.get(), kind->plan.get(),
                                                                   model_, Exchange(shape_), &peer_));
  kind->plan->Upload(graph_->stream());
  WINNOW_RETURN_IF_ERROR(device_.Synchronize(graph_->stream()));
  kind->colocated = std::make_unique<ColocatedSelection>(device_, *kind->plan, *kind->selection, PlanBucket{}, inbox_,
                                                         peer_, shape_.layout.num_layers, shape_.windows);
  kind->colocated->SetStepPositions(graph_->positions());
  *place = std::move(kind);
  return place->get();
}

absl::Status LocalSelection::Open(int row, const StepSequence& sequence, const DeviceIndex& index,
                                  device::Stream stream) {
  const uint32_t count = std::min(winnow::PastQueries(*sequence.spec), sequence.position);
  const size_t of_layer = sequence.past_queries.size() / shape_.layout.num_layers;
  const size_t wanted = size_t{count} * shape_.layout.num_query_heads * shape_.layout.head_dim;
  if (of_layer < wanted) return absl::InternalError("a sequence that looks back came without its past queries");
  const size_t num_lists = shape_.layout.num_lists(), pages_per_list = sequence.pages.size() / num_lists;
  const size_t per_list = (sequence.max_positions + kBlockTokens - 1) / kBlockTokens;
  constexpr uint32_t kPerPage = kSlotPageTokens / kBlockTokens;
  std::vector<uint32_t> blocks;
  blocks.reserve(num_lists * per_list);
  for (size_t list = 0; list < num_lists; ++list) {
    for (uint32_t i = 0; i < per_list; ++i) {
      blocks.push_back(sequence.pages[list * pages_per_list + i / kPerPage] * kPerPage + i % kPerPage);
    }
  }
  WINNOW_RETURN_IF_ERROR(store_->OpenAt(static_cast<uint32_t>(row), sequence.max_positions, blocks, index, stream));
  for (int layer = 0; layer < shape_.layout.num_layers && count > 0; ++layer) {
    const float* const end = sequence.past_queries.data() + (layer + 1) * of_layer;
    WINNOW_RETURN_IF_ERROR(
        store_->LoadPastQueries(static_cast<uint32_t>(row), layer, sequence.position, count, end - wanted, stream));
  }
  return absl::OkStatus();
}

absl::Status LocalSelection::Sit(int row, const StepSequence& sequence, device::Stream stream) {
  WINNOW_CHECK(rows_[row].kind == nullptr && !IsDense(*sequence.spec));
  WINNOW_ASSIGN_OR_RETURN(Kind * kind, KindOf(*sequence.spec));
  WINNOW_RETURN_IF_ERROR(Open(row, sequence, kind->selection->index(), stream));
  ++kind->num_rows;
  rows_[row] = {.kind = kind,
                .spec = *sequence.spec,
                .indexed_positions = sequence.indexed_positions,
                .prompt_tokens = sequence.prompt_tokens,
                .staging_slots = static_cast<uint32_t>(std::min<size_t>(
                    sequence.staging.size() / shape_.layout.num_lists() * kSlotPageTokens, StagingSlots(shape_)))};
  return absl::OkStatus();
}

bool LocalSelection::BeginsAt(int row, uint32_t position) const {
  const Row& of = rows_[row];
  return of.kind != nullptr && !of.selects && position >= of.spec.dense_below_tokens;
}

device::RowWindow LocalSelection::WindowOf(int row) const {
  const SelectionSpec& spec = rows_[row].spec;
  return {.sinks = spec.sink_tokens,
          .recent_tokens = spec.recent_tokens,
          .reuse_interval = spec.reuse_interval,
          .prompt_tokens = rows_[row].prompt_tokens};
}

absl::Status LocalSelection::Begin(int row, uint32_t position, device::Stream stream) {
  Row& of = rows_[row];
  const auto sequence = static_cast<uint32_t>(row);
  for (int layer = 0; layer < shape_.layout.num_layers; ++layer) {
    if (shape_.has_window(layer)) continue;
    store_->BoundGroups(sequence, layer, of.indexed_positions, stream);
    WINNOW_RETURN_IF_ERROR(
        store_->AppendRange(sequence, layer, of.indexed_positions, position - of.indexed_positions, nullptr, stream));
  }
  of.kind->plan->SetRowInPlace(row, of.spec, of.prompt_tokens, StagingOf(row), stream);
  of.selects = true;
  return absl::OkStatus();
}

std::vector<float> LocalSelection::PastQueries(int row, uint32_t end, device::Stream stream) const {
  const Row& of = rows_[row];
  const uint32_t count = of.kind == nullptr ? 0 : std::min(winnow::PastQueries(of.spec), end);
  const size_t of_layer = size_t{count} * shape_.layout.num_query_heads * shape_.layout.head_dim;
  std::vector<float> queries(shape_.layout.num_layers * of_layer);
  for (int layer = 0; layer < shape_.layout.num_layers && count > 0; ++layer) {
    store_->ReadPastQueries(static_cast<uint32_t>(row), layer, end, count, queries.data() + layer * of_layer, stream);
  }
  return queries;
}

DevicePlan::Staging LocalSelection::StagingOf(int row) const {
  if (rows_[row].staging_slots == 0) return {};
  const DecodeSlotShape& slots = slots_.shape();
  return {.slot_pool = slots_.slot_pool(),
          .pages = slots_.pages(),
          .pages_per_list = slots.pages_per_list(),
          .pool_base = slots.staging_base(),
          .pool_slots = rows_[row].staging_slots};
}

void LocalSelection::Leave(int row, device::Stream stream) {
  Row& left = rows_[row];
  if (left.kind == nullptr) return;
  if (left.selects) left.kind->plan->LeaveInPlace(row, stream);
  store_->Release(static_cast<uint32_t>(row));
  --left.kind->num_rows;
  left = {};
}

DecodeVariant LocalSelection::VariantOf(std::span<const RowAt> rows, int bucket_rows) {
  needs_ = {};
  needs_.least_position.fill(~0u);
  for (const RowAt& at : rows) {
    const Row& row = rows_[at.row];
    needs_.has_dense |= !row.selects;
    // A row that will look back has its queries kept from the first on.
    if (!row.selects && (row.kind == nullptr || !PredictsFromPast(row.kind->spec.predictor))) continue;
    needs_.kinds[row.kind->index] = true;
    uint32_t& least = needs_.least_position[row.kind->index];
    least = std::min(least, at.position);
    needs_.greatest_position = std::max(needs_.greatest_position, at.position);
    needs_.measures |= row.selects && MeasuresMassOfRow(at.position, row.prompt_tokens, at.row);
  }
  return Variant(bucket_rows);
}

DecodeVariant LocalSelection::Variant(int bucket_rows) {
  DecodeVariant variant{.key = uint64_t{needs_.has_dense} << kDenseBit,
                        .max_list_rows = needs_.has_dense ? shape_.max_context_tokens : MaxListRows(shape_)};
  const uint32_t keys = std::max(std::bit_ceil(needs_.greatest_position + 1), kLeastBucketKeys);
  std::vector<ColocatedSelection*> together;
  for (const std::unique_ptr<Kind>& kind : kinds_) {
    if (kind == nullptr || !needs_.kinds[kind->index]) continue;
    const bool none_below =
        kind->spec.score_all_below_tokens > 0 && NoneBelow(kind->spec, needs_.least_position[kind->index]);
    kind->colocated->SetBucket(
        {.num_rows = bucket_rows, .max_keys = std::min(keys, shape_.max_context_tokens), .none_below = none_below},
        needs_.measures && Measures(*kind));
    variant.hidden_layers = std::max(variant.hidden_layers, kind->colocated->hidden_layers());
    variant.key |= uint64_t{1} << kind->index | uint64_t{none_below} << (kMaxKinds + kind->index);
    together.push_back(kind->colocated.get());
  }
  if (together.empty()) return variant;
  together_.Set(std::move(together));
  variant.cache = &together_;
  variant.key |= uint64_t{needs_.measures} << kMeasuresBit | uint64_t(std::bit_width(keys)) << kKeysBit;
  return variant;
}

absl::Status LocalSelection::PrepareGraphs() {
  const SelectionSpec& spec = shape_.selection;
  if (IsDense(spec) || !Serves(table_, shape_, spec).ok()) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(const Kind* kind, KindOf(spec));
  // While some rows still attend to everything, others select.
  const std::vector<bool> with_dense =
      spec.dense_below_tokens > 0 ? std::vector<bool>{false, true} : std::vector<bool>{false};
  for (uint32_t keys = kLeastBucketKeys;; keys *= 2) {
    for (const bool has_dense : with_dense) {
      for (const bool measures : {false, true}) {
        if (keys <= spec.dense_below_tokens && !PredictsFromPast(spec.predictor)) continue;
        for (const int bucket : DecodeGraph::kBuckets) {
          const int rows = std::min(bucket, shape_.max_rows);
          needs_ = {.greatest_position = keys - 1, .measures = measures, .has_dense = has_dense};
          needs_.kinds[kind->index] = true;
          needs_.least_position.fill(keys / 2);
          WINNOW_RETURN_IF_ERROR(graph_->Prepare(rows, Variant(rows)));
          if (bucket >= shape_.max_rows) break;
        }
      }
    }
    if (keys >= shape_.max_context_tokens) return absl::OkStatus();
  }
}

size_t LocalSelection::ReadbackBytes(const Shape& shape) {
  const device::ExchangeShape exchange = Exchange(shape);
  return kMaxKinds * (exchange.masses_per_plan() * sizeof(device::MeasuredMass) + NumCounts(shape) * sizeof(uint32_t));
}

size_t LocalSelection::NumCounts(const Shape& shape) {
  return (shape.stages ? 2 : 1) * shape.layout.num_layers * Exchange(shape).counts_per_layer();
}

void LocalSelection::EnqueueReadback(Readback& readback, device::Stream stream) {
  readback.of_kind = {};
  if (!needs_.measures) return;
  const device::ExchangeShape exchange = Exchange(shape_);
  const size_t mass_bytes = exchange.masses_per_plan() * sizeof(device::MeasuredMass);
  const size_t count_bytes = NumCounts() * sizeof(uint32_t);
  for (const std::unique_ptr<Kind>& kind : kinds_) {
    if (kind == nullptr || !needs_.kinds[kind->index] || !Measures(*kind)) continue;
    readback.of_kind[kind->index] = true;
    std::byte* const to = readback.region + kind->index * (mass_bytes + count_bytes);
    device_.CopyAsync(to, kind->selection->masses(), mass_bytes, stream);
    device_.CopyAsync(to + mass_bytes, kind->selection->counts(0), count_bytes, stream);
  }
}

std::optional<LocalSelection::RowCounts> LocalSelection::TakeReadback(const Readback& readback, int row,
                                                                      uint32_t position,
                                                                      std::vector<float>& masses) const {
  const Row& of = rows_[row];
  if (!of.selects || !readback.of_kind[of.kind->index]) return std::nullopt;
  if (!MeasuresMassOfRow(position, of.prompt_tokens, row)) return std::nullopt;
  const device::ExchangeShape exchange = Exchange(shape_);
  const size_t mass_bytes = exchange.masses_per_plan() * sizeof(device::MeasuredMass);
  const size_t count_bytes = NumCounts() * sizeof(uint32_t);
  const std::byte* const from = readback.region + of.kind->index * (mass_bytes + count_bytes);
  const auto* const measured = reinterpret_cast<const device::MeasuredMass*>(from);
  const auto* const counts = reinterpret_cast<const uint32_t*>(from + mass_bytes);
  const int heads = shape_.layout.num_kv_heads;
  const uint32_t window = RecentStart(position, of.spec.recent_tokens, of.spec.sink_tokens, kBlockTokens);
  RowCounts sum;
  masses.clear();
  for (int layer = 0; layer < shape_.layout.num_layers; ++layer) {
    for (int head = 0; head < heads; ++head) {
      const size_t list = static_cast<size_t>(row) * heads + head;
      if (shape_.has_window(layer)) {
        masses.push_back(std::numeric_limits<float>::quiet_NaN());
        continue;
      }
      masses.push_back(measured[layer * exchange.lists_per_layer() + list].mass);
      const uint32_t budget = HeadBudget(of.spec, shape_.layout.list(layer, head));
      if (window - of.spec.sink_tokens <= budget) continue;  // it attends to everything
      // Whole units write their counts elsewhere: with the fewest rows that hold a mass this is what they are at most.
      const size_t entry = layer * exchange.counts_per_layer() + list;
      sum.selected += SelectsWholePages(of.spec) ? budget : counts[entry];
      if (of.staging_slots > 0) sum.fetched += counts[shape_.layout.num_layers * exchange.counts_per_layer() + entry];
    }
  }
  return sum;
}

}  // namespace winnow
