#include "tools/bench/gpu/checks/cache_gpu.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "common/model/rope.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow {
namespace {

uint16_t ToBf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) std::fprintf(stderr, "%s\n", std::string(value.status().message()).c_str());
  WINNOW_CHECK(value.ok());
  return *std::move(value);
}

}  // namespace

CacheGpu::CacheGpu(GpuContext& gpu, const Options& options)
    : gpu_(gpu), options_(options), random_(options.seed), rows_(options.positions.size()), past_(rows_.size()) {
  LoadModel();
  const uint32_t max_positions = [&] {
    uint32_t most = 0;
    for (int row = 0; row < max_rows(); ++row)
      most = sits(row) ? std::max(most, position(row, options.num_plans)) : most;
    return most;
  }();
  const auto num_sequences = static_cast<uint32_t>(max_rows());
  store = Must(DeviceKvStore::Create(&gpu.table, &gpu.device,
                                     DeviceKvShapeFor(options.spec, layout(), num_sequences, max_positions,
                                                      uint64_t{num_sequences} * max_positions, options.rows)));
  plan = Must(DevicePlan::Create(&gpu.table, &gpu.device, store.get(), options.spec, max_rows()));
  exchange = {
      .layout = layout(), .max_rows = max_rows(), .hidden_size = options.hidden_size, .max_budget = plan->max_budget()};
  const size_t pages_per_list = store->shape().peer_pages();
  pages_.resize(num_sequences * layout().num_lists() * pages_per_list);
  std::iota(pages_.begin(), pages_.end(), 0u);
  std::shuffle(pages_.begin(), pages_.end(), random_);
  num_slots_ = pages_.size() * kSlotPageTokens;
  pool_base_ = options.spec.sink_tokens + 37;
  const size_t cache_bytes = device::CacheInboxBytes(exchange), peer_bytes = device::InferenceInboxBytes(exchange);
  const size_t flags_bytes = device::InferenceFlagsBytes(exchange);
  inbox = device::CacheInboxAt(exchange, gpu.New<std::byte>(cache_bytes));
  peer = device::InferenceInboxAt(exchange, gpu.New<std::byte>(peer_bytes), gpu.New<std::byte>(flags_bytes),
                                  gpu.New<std::byte>(num_slots_ * layout().row_bytes()));
  RaiseAll(gpu.stream, 0);
  gpu.device.FillAsync(peer.delta_flags, 0, layout().num_layers * sizeof(uint32_t), gpu.stream);

  const bool projects = options.spec.predictor == Predictor::kDepth;
  selection = Must(DeviceSelection::Create(
      &gpu.table, &gpu.device, store.get(), plan.get(),
      {.rope = rope_, .attention_scale = attention_scale(), .queries = projects ? weights.get() : nullptr}, exchange));
  graph = Must(SelectGraph::Create(&gpu.table, &gpu.device, store.get(), plan.get(), selection.get(), inbox, peer,
                                   {.timeout_us = 2000000, .digests_rows = true}));
  MakeInputs();
  OpenSequences();
  WINNOW_CHECK(gpu.device.Synchronize(gpu.stream).ok());
}

float CacheGpu::attention_scale() const {
  return 1 / std::sqrt(static_cast<float>(layout().head_dim));
}

void CacheGpu::LoadModel() {
  const TinyModel model{.num_layers = layout().num_layers,
                        .hidden_size = options_.hidden_size,
                        .num_query_heads = layout().num_query_heads,
                        .num_kv_heads = layout().num_kv_heads,
                        .head_dim = layout().head_dim,
                        .max_position_embeddings = 1 << 20,
                        .seed = static_cast<uint32_t>(options_.seed)};
  WriteTinyCheckpoint(model, model_dir());
  const ModelConfig config = Must(LoadModelConfig(model_dir()));
  const RopeTable table = ComputeRope(config.rope, config.head_dim);
  rope_ = {.inv_freq = table.inv_freq, .attention_factor = table.attention_factor};
  if (options_.spec.predictor != Predictor::kDepth) return;
  const std::unique_ptr<Checkpoint> checkpoint = Must(Checkpoint::Open(model_dir()));
  weights = Must(DeviceWeights::Load(gpu_.table, gpu_.device, *checkpoint, config,
                                     {.dtype = Dtype::kBf16, .shard = {}, .parts = WeightParts::kQueryProjections}));
}

uint32_t CacheGpu::first_past(int row) const {
  return options_.positions[row] - std::min(options_.positions[row], store->shape().ring_queries);
}

const float* CacheGpu::PastQuery(int row, int layer, uint32_t at) const {
  const size_t floats = static_cast<size_t>(layout().num_query_heads) * layout().head_dim;
  if (at < options_.positions[row]) return past_[row][layer].data() + (at - first_past(row)) * floats;
  const Inputs& inputs = inputs_[at - options_.positions[row]];
  return inputs.queries.data() + (static_cast<size_t>(layer) * max_rows() + row) * floats;
}

// Queries of neighbouring positions share most of what they are, as those of a text do.
void CacheGpu::MakeInputs() {
  std::normal_distribution<float> normal;
  const auto fill = [&](auto& values, size_t count, auto make) {
    values.resize(count);
    for (auto& value : values) value = make();
  };
  const size_t floats = static_cast<size_t>(layout().num_query_heads) * layout().head_dim;
  const size_t layer_rows = static_cast<size_t>(layout().num_layers) * max_rows();
  std::vector<float> common;
  fill(common, layer_rows * floats, [&] { return normal(random_); });
  inputs_.resize(options_.num_plans);
  for (Inputs& inputs : inputs_) {
    fill(inputs.hidden, layer_rows * options_.hidden_size, [&] { return normal(random_); });
    inputs.queries = common;
    for (float& q : inputs.queries) q = 0.9f * q + 0.44f * normal(random_);
    inputs.rows.resize(layer_rows * layout().num_kv_heads * 2 * layout().head_dim);
  }
  for (int row = 0; row < max_rows(); ++row) {
    if (!sits(row)) continue;
    for (size_t list = 0; list < layout().num_lists(); ++list) {
      fill(rows_[row].emplace_back(), position(row, options_.num_plans) * size_t{2} * layout().head_dim,
           [&] { return ToBf16(options_.key_spread * normal(random_)); });
      for (int p = 0; p < options_.num_plans; ++p) {
        const size_t layer = list / layout().num_kv_heads, head = list % layout().num_kv_heads;
        const size_t entry = (layer * max_rows() + row) * layout().num_kv_heads + head;
        std::copy_n(Row(row, list, position(row, p)), 2 * layout().head_dim,
                    inputs_[p].rows.begin() + static_cast<int64_t>(entry * 2 * layout().head_dim));
      }
    }
    for (int layer = 0; layer < layout().num_layers; ++layer) {
      std::vector<float>& past = past_[row].emplace_back();
      const uint32_t count = options_.positions[row] - first_past(row);
      for (uint32_t i = 0; i < count; ++i) {
        for (size_t f = 0; f < floats; ++f) {
          past.push_back(0.9f * common[(static_cast<size_t>(layer) * max_rows() + row) * floats + f] +
                         0.44f * normal(random_));
        }
      }
    }
  }
  for (Inputs& inputs : inputs_) {
    inputs.device_hidden = gpu_.Upload(inputs.hidden);
    inputs.device_queries = gpu_.Upload(inputs.queries);
    inputs.device_rows = gpu_.Upload(inputs.rows);
  }
}

void CacheGpu::OpenSequences() {
  const size_t row_elements = 2 * static_cast<size_t>(layout().head_dim);
  const int heads = layout().num_kv_heads;
  for (int row = 0; row < max_rows(); ++row) {
    if (!sits(row)) continue;
    const uint32_t sequence = Must(store->Open(position(row, options_.num_plans), gpu_.stream));
    for (int layer = 0; layer < layout().num_layers; ++layer) {
      // In two runs, of which the second begins inside a page.
      const uint32_t end = options_.positions[row], middle = end / 2 | 1;
      for (const auto& [first, last] : {std::pair{0u, std::min(middle, end)}, {std::min(middle, end), end}}) {
        if (first == last) continue;
        std::vector<uint16_t> run;
        for (int head = 0; head < heads; ++head) {
          const uint16_t* from = Row(row, layout().list(layer, head), first);
          run.insert(run.end(), from, from + (last - first) * row_elements);
        }
        WINNOW_CHECK(store->AppendRange(sequence, layer, first, last - first, gpu_.Upload(run), gpu_.stream).ok());
      }
      if (store->shape().ring_queries == 0) continue;
      WINNOW_CHECK(store
                       ->LoadPastQueries(sequence, layer, end, end - first_past(row), gpu_.Upload(past_[row][layer]),
                                         gpu_.stream)
                       .ok());
    }
    SetRow(row, sequence);
  }
  plan->Upload(gpu_.stream);
}

void CacheGpu::SetRow(int row, uint32_t sequence) {
  const size_t pages = layout().num_lists() * store->shape().peer_pages();
  WINNOW_CHECK(store->SetPeerPages(sequence, {pages_.data() + row * pages, pages}, gpu_.stream).ok());
  const std::vector<uint32_t> bases(layout().num_lists(), pool_base_);
  plan->SetRow(row, sequence, options_.positions[row], {.slot_pool = peer.slot_pool, .pool_bases = bases},
               prompt_tokens(row));
}

void CacheGpu::SendHidden(device::Stream stream, int plan, int layer) {
  const size_t floats = static_cast<size_t>(max_rows()) * options_.hidden_size;
  gpu_.device.CopyAsync(inbox.hidden + layer * floats, inputs_[plan].device_hidden + layer * floats,
                        floats * sizeof(float), stream);
}

void CacheGpu::SendRows(device::Stream stream, int plan, int layer) {
  const size_t floats = static_cast<size_t>(max_rows()) * layout().num_query_heads * layout().head_dim;
  gpu_.device.CopyAsync(inbox.queries + layer * floats, inputs_[plan].device_queries + layer * floats,
                        floats * sizeof(float), stream);
  const size_t elements = exchange.lists_per_layer() * 2 * layout().head_dim;
  gpu_.device.CopyAsync(static_cast<uint16_t*>(inbox.rows) + layer * elements,
                        inputs_[plan].device_rows + layer * elements, elements * sizeof(uint16_t), stream);
}

void CacheGpu::RaiseAll(device::Stream stream, uint32_t number) {
  const std::vector<uint32_t> words(layout().num_layers, number);
  for (uint32_t* flags : {inbox.hidden_flags, inbox.rows_flags}) {
    gpu_.device.CopyAsync(flags, words.data(), words.size() * sizeof(uint32_t), stream);
  }
}

std::vector<device::AttentionList> CacheGpu::PeerLists(int layer) const {
  const size_t lists = exchange.lists_per_layer();
  return gpu_.Download(peer.lists + layer * lists, lists);
}

std::vector<uint32_t> CacheGpu::PeerPoolIndices(int layer) const {
  const size_t entries = exchange.lists_per_layer() * exchange.max_budget;
  return gpu_.Download(peer.pool_indices + layer * entries, entries);
}

std::vector<uint16_t> CacheGpu::PeerSlots() const {
  return gpu_.Download(static_cast<const uint16_t*>(peer.slot_pool), num_slots_ * 2 * layout().head_dim);
}

size_t CacheGpu::Slot(int row, size_t list, uint32_t pool_index) const {
  const size_t local = pool_base_ + pool_index, pages = store->shape().peer_pages();
  const uint32_t page = pages_[(row * layout().num_lists() + list) * pages + local / kSlotPageTokens];
  return size_t{page} * kSlotPageTokens + local % kSlotPageTokens;
}

}  // namespace winnow
