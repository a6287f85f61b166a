#include "model/device/decode_graph.h"

#include <algorithm>
#include <atomic>

#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/device/arena.h"

namespace winnow {
namespace {

constexpr DevicePhase kDecode = DevicePhase::kDecode;

}  // namespace

const char* DecodePartName(DecodePart part) {
  constexpr const char* kNames[kNumDecodeParts] = {"embed",      "input norm", "qkv",     "rope",       "attention",
                                                   "o",          "mlp norm",   "gate_up", "silu",       "down",
                                                   "final norm", "lm_head",    "sample",  "all-reduce", "exchange"};
  return kNames[static_cast<int>(part)];
}

int DecodeGraph::BucketFor(int num_rows) {
  WINNOW_CHECK(num_rows >= 1 && num_rows <= kBuckets.back());
  return *std::lower_bound(kBuckets.begin(), kBuckets.end(), num_rows);
}

DecodeGraph::DecodeGraph(device::Device& device, DeviceLayers& layers, DecodeSlots& slots,
                         const DecodeGraphOptions& options)
    : device_(device),
      layers_(layers),
      slots_(slots),
      table_(layers.table()),
      config_(layers.config()),
      options_(options),
      inbox_(OffsetsInCacheInbox(slots.shape().exchange())),
      stream_(options.stream != nullptr ? options.stream : device.NewStream(true)),
      side_stream_(device.NewStream(true)),
      fork_(device.NewEvent()),
      published_(device.NewEvent()) {}

size_t DecodeGraph::CarveInputs(int max_rows, void* region, Inputs* inputs) {
  device::Arena arena(region);
  inputs->token_ids = arena.TakeArray<uint32_t>(max_rows);
  inputs->positions = arena.TakeArray<uint32_t>(max_rows);
  inputs->draws = arena.TakeArray<device::SampleRow>(max_rows);
  inputs->inboxes = arena.TakeArray<void*>(max_rows);
  inputs->peers = arena.TakeArray<device::ExchangePeer>(device::kMaxExchangePeers);
  return arena.used_bytes();
}

size_t DecodeGraph::InputBytes(int max_rows) {
  Inputs inputs;
  return CarveInputs(max_rows, nullptr, &inputs);
}

DecodeGraph::Inputs DecodeGraph::InputsAt(int max_rows, void* region) {
  Inputs inputs;
  CarveInputs(max_rows, region, &inputs);
  return inputs;
}

size_t DecodeGraph::Carve(void* region) {
  const size_t rows = max_rows(), heads = config_.num_kv_heads, lists = slots_.shape().num_lists();
  device::Arena arena(region);
  state_.plan = arena.TakeArray<uint32_t>(1);
  state_.next = InputsAt(max_rows(), arena.Take(InputBytes(max_rows())));
  state_.positions = arena.TakeArray<uint32_t>(rows);
  state_.windows = arena.TakeArray<device::RowWindow>(rows);
  state_.index_budgets = arena.TakeArray<uint32_t>(rows);
  if (!config_.windows.empty()) state_.layer_windows = arena.TakeArray<uint32_t>(config_.windows.size());
  state_.logprobs = arena.TakeArray<float>(rows);
  state_.token_log = arena.TakeArray<uint32_t>(options_.token_log_steps * rows);
  state_.kv_destinations = arena.TakeArray<void*>(lists);
  state_.kv_slots = arena.TakeArray<uint32_t>(lists);
  state_.arrivals = arena.TakeArray<uint32_t>(1);
  state_.digest_sums = arena.TakeArray<uint64_t>(rows * heads);
  state_.digest_arrivals = arena.TakeArray<uint32_t>(rows * heads);
  if (converts_rows()) {
    state_.bf16_rows = arena.Take(rows * heads * 2 * config_.head_dim * DtypeBytes(Dtype::kBf16));
    state_.kv_rows = arena.Take(rows * heads * slots_.shape().row_bytes());
    state_.row_scales = arena.TakeArray<float>(rows * heads * 2);
  }
  return arena.used_bytes();
}

absl::StatusOr<std::unique_ptr<DecodeGraph>> DecodeGraph::Create(device::Device& device, DeviceLayers& layers,
                                                                 DecodeSlots& slots,
                                                                 const DecodeGraphOptions& options) {
  std::unique_ptr<DecodeGraph> graph(new DecodeGraph(device, layers, slots, options));
  if (graph->is_sparse() && graph->kv_dtype() != Dtype::kBf16 && !slots.shape().holds_everything()) {
    return absl::UnimplementedError("a cache rank's GPU sends rows of bf16; slots of another dtype would need scales");
  }
  if (!layers.config().windows.empty() && !slots.shape().holds_everything()) {
    return absl::UnimplementedError("layers with a sliding window read it from slots that hold all rows of a sequence");
  }
  WINNOW_CHECK(options.row_copies == nullptr ||
               (!graph->is_remote() && !graph->converts_rows() && slots.shape().holds_everything()));
  WINNOW_ASSIGN_OR_RETURN(graph->memory_, device.Allocate(graph->Carve(nullptr)));
  WINNOW_ASSIGN_OR_RETURN(graph->words_, device.AllocatePinned(256));
  graph->Carve(graph->memory_->data());
  std::fill_n(static_cast<uint32_t*>(graph->words_->data()), 2, 0);
  device.FillAsync(graph->memory_->data(), 0, graph->memory_->bytes(), graph->stream_);
  const std::vector<uint32_t>& layer_windows = graph->config_.windows;
  if (!layer_windows.empty()) {
    device.CopyAsync(graph->state_.layer_windows, layer_windows.data(), layer_windows.size() * sizeof(uint32_t),
                     graph->stream_);
  }
  WINNOW_RETURN_IF_ERROR(graph->SetRows({}));
  if (options.inbox.region() != nullptr) WINNOW_RETURN_IF_ERROR(graph->SetPeer());
  return graph;
}

// The one that all rows belong to.
absl::Status DecodeGraph::SetPeer() {
  void* const inbox = options_.inbox.region();
  const std::vector<void*> inboxes(max_rows(), inbox);
  const device::ExchangePeer peer{.inbox = static_cast<std::byte*>(inbox),
                                  .delta_flags = slots_.inbox().delta_flags,
                                  .abort = abort_word(),
                                  .error = error_word()};
  device_.CopyAsync(state_.next.inboxes, inboxes.data(), inboxes.size() * sizeof(void*), stream_);
  device_.CopyAsync(state_.next.peers, &peer, sizeof(peer), stream_);
  return device_.Synchronize(stream_);
}

absl::Status DecodeGraph::SetRows(std::span<const std::optional<DecodeRow>> rows) {
  WINNOW_CHECK(rows.size() <= static_cast<size_t>(max_rows()));
  std::vector<uint32_t> tokens(max_rows()), positions(max_rows(), device::kNoPosition);
  std::vector<device::RowWindow> windows(max_rows(), WindowOf(0));
  std::vector<device::SampleRow> samples(max_rows());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].has_value()) continue;
    tokens[i] = rows[i]->token_id;
    positions[i] = rows[i]->position;
    windows[i] = WindowOf(rows[i]->prompt_tokens);
    samples[i] = rows[i]->sampling;
    --samples[i].token_index;  // the step's beginning adds one
  }
  device_.CopyAsync(state_.next.token_ids, tokens.data(), tokens.size() * sizeof(uint32_t), stream_);
  device_.CopyAsync(state_.next.positions, positions.data(), positions.size() * sizeof(uint32_t), stream_);
  device_.CopyAsync(state_.windows, windows.data(), windows.size() * sizeof(windows[0]), stream_);
  device_.CopyAsync(state_.next.draws, samples.data(), samples.size() * sizeof(device::SampleRow), stream_);
  return device_.Synchronize(stream_);
}

device::RowWindow DecodeGraph::WindowOf(uint32_t prompt_tokens) const {
  const DecodeSlotShape& shape = slots_.shape();
  if (shape.is_dense()) return {};
  return {.sinks = shape.sinks,
          .recent_tokens = shape.recent_tokens,
          .reuse_interval = shape.reuse_interval,
          .prompt_tokens = prompt_tokens};
}

void DecodeGraph::EnqueueWindow(int row, const device::RowWindow& window) {
  device_.CopyAsync(state_.windows + row, &window, sizeof(window), stream_);
}

void DecodeGraph::EnqueueIndexBudget(int row, uint32_t budget) {
  device_.CopyAsync(state_.index_budgets + row, &budget, sizeof(budget), stream_);
}

void DecodeGraph::EnqueueInputs(const Inputs& pinned) {
  // One region, of which tokens are the first part.
  const auto* const region = reinterpret_cast<const std::byte*>(pinned.token_ids);
  const auto* const behind_tokens = reinterpret_cast<const std::byte*>(pinned.positions);
  device_.CopyAsync(state_.next.positions, behind_tokens, InputBytes(max_rows()) - (behind_tokens - region), stream_);
}

void DecodeGraph::EnqueueToken(int row, const Inputs& pinned) {
  device_.CopyAsync(state_.next.token_ids + row, pinned.token_ids + row, sizeof(uint32_t), stream_);
}

void DecodeGraph::EnqueueRow(int row, const Inputs& pinned) {
  EnqueueToken(row, pinned);
  device_.CopyAsync(state_.next.positions + row, pinned.positions + row, sizeof(uint32_t), stream_);
  device_.CopyAsync(state_.next.draws + row, pinned.draws + row, sizeof(device::SampleRow), stream_);
}

void DecodeGraph::BeginStep(device::Stream stream, int num_rows) {
  const DecodeSlotShape& shape = slots_.shape();
  table_.step->begin_step(stream, {.plan = state_.plan,
                                   .next_positions = state_.next.positions,
                                   .positions = state_.positions,
                                   .sample_rows = state_.next.draws,
                                   .token_ids = state_.next.token_ids,
                                   .token_log = state_.token_log,
                                   .log_steps = options_.token_log_steps,
                                   .lists = slots_.inbox().lists,
                                   .lists_per_kv_head = shape.lists_per_kv_head,
                                   .pages = slots_.pages(),
                                   .num_rows = num_rows,
                                   .max_rows = max_rows(),
                                   .num_layers = config_.num_layers,
                                   .num_kv_heads = config_.num_kv_heads,
                                   .window = options_.window,
                                   .layer_windows = state_.layer_windows,
                                   .windows = state_.windows,
                                   .slot_pool = slots_.slot_pool(),
                                   .row_bytes = shape.row_bytes(),
                                   .kv_destinations = state_.kv_destinations,
                                   .kv_slots = state_.kv_slots});
}

device::SendRowsParams DecodeGraph::HiddenOf(int layer, int num_rows) const {
  const size_t row_bytes = config_.hidden_size * sizeof(float);
  return {.from = layers_.hidden(),
          .row_bytes = row_bytes,
          .num_rows = num_rows,
          .regions = state_.next.inboxes,
          .to = inbox_.hidden + layer * max_rows() * row_bytes,
          .peers = state_.next.peers,
          .flag = inbox_.hidden_flags + layer * sizeof(uint32_t),
          .value = state_.plan,
          .arrivals = state_.arrivals};
}

// Sums of o and of down have places of their own, which are used in turn.
DecodeSum DecodeGraph::SumOf(DecodePart product) const {
  const TensorParallelGroup& group = options_.group;
  const int64_t stride = static_cast<int64_t>(max_rows()) * config_.hidden_size;
  const int64_t first = product == DecodePart::kDown ? group.num_ranks * stride : 0;
  DecodeSum sum = {.places = {.num_ranks = group.num_ranks},
                   .terms = group.boxes[group.rank].terms + first,
                   .term_stride = stride,
                   .abort = abort_word(),
                   .error = error_word(),
                   .timeout_us = options_.wait_timeout_us};
  for (int r = 0; r < group.num_ranks; ++r) {
    sum.places.of_rank[r] = group.boxes[r].terms + first + group.rank * stride;
  }
  return sum;
}

// Every rank gets all logits, and draws the same tokens from them.
void DecodeGraph::GatherLogits(device::Stream stream, int num_rows) {
  const TensorParallelGroup& group = options_.group;
  const device::DeviceMatrix& part = layers_.weights().lm_head();
  if (part.out_features == config_.vocab_size) return;
  const int first = layers_.weights().lm_head_first();
  const int64_t stride = config_.vocab_size * sizeof(float);
  for (int r = 0; r < group.num_ranks; ++r) {
    if (r == group.rank) continue;
    table_.step->publish(stream, {.from = layers_.logits() + first,
                                  .from_stride = stride,
                                  .to = group.boxes[r].logits + first,
                                  .to_stride = stride,
                                  .num_rows = num_rows,
                                  .row_bytes = part.out_features * sizeof(float),
                                  .flag = group.boxes[r].logit_flags + group.rank,
                                  .value = state_.plan,
                                  .arrivals = state_.arrivals});
  }
  for (int r = 0; r < group.num_ranks; ++r) {
    if (r == group.rank) continue;
    table_.cache->wait(stream, {.flag = group.boxes[group.rank].logit_flags + r,
                                .value = state_.plan,
                                .abort = abort_word(),
                                .error = error_word(),
                                .timeout_us = options_.wait_timeout_us});
  }
}

void DecodeGraph::Rope(device::Stream stream, int layer, const StepShape& step) {
  const int num_rows = step.num_rows;
  const Dtype computed = converts_rows() ? Dtype::kBf16 : kv_dtype();
  const size_t heads = config_.num_kv_heads, row_bytes = config_.kv_layout(computed).row_bytes();
  const size_t first_row = static_cast<size_t>(layer) * max_rows(), first_list = first_row * heads;
  RopeOutputs outputs{.positions = state_.positions, .kv_dtype = computed};
  if (converts_rows()) {
    outputs.kv_copy = state_.bf16_rows;
  } else {
    outputs.kv_destinations = state_.kv_destinations + first_list;
    outputs.slot_scales = slots_.scales();
    outputs.slot_pool = slots_.slot_pool();
  }
  if (options_.row_copies != nullptr) {
    outputs.kv_copy = static_cast<std::byte*>(options_.row_copies) + layer * heads * row_bytes;
    outputs.kv_copy_stride = static_cast<int64_t>(config_.num_layers * heads * row_bytes);
  }
  const void* bf16_rows = state_.bf16_rows;
  if (options_.row_copies != nullptr && step.exchanges) {
    outputs.q_pre_rope = options_.inbox.queries + first_row * config_.q_features();
  } else if (is_sparse() && options_.row_copies == nullptr) {
    const size_t rows = inbox_.rows + first_list * row_bytes;
    outputs.copy_regions = state_.next.inboxes;
    outputs.q_pre_rope = reinterpret_cast<float*>(inbox_.queries + first_row * config_.q_features() * sizeof(float));
    // Rows of int8 are read in their slots.
    if (computed == Dtype::kBf16) outputs.kv_copy = reinterpret_cast<void*>(rows);
    bf16_rows = static_cast<const std::byte*>(options_.inbox.region()) + rows;  // where they are converted: of one
  }
  layers_.Rope(stream, kDecode, layer, num_rows, outputs);
  if (!converts_rows()) return;
  const int lists = num_rows * config_.num_kv_heads;
  table_.attention->quantize_rows(stream, bf16_rows, lists, config_.head_dim, slots_.shape().layout.dtype,
                                  state_.kv_rows, state_.row_scales);
  table_.step->scatter_rows(stream, {.rows = state_.kv_rows,
                                     .scales = state_.row_scales,
                                     .slots = state_.kv_slots + first_list,
                                     .num_rows = lists,
                                     .row_bytes = slots_.shape().row_bytes(),
                                     .slot_pool = slots_.slot_pool(),
                                     .slot_scales = slots_.scales()});
}

void DecodeGraph::ExchangeRows(device::Stream stream, int layer, const StepShape& step) {
  if (options_.mode == DecodeMode::kColocated) {
    step.variant.cache->OnRows(layer);
    return;
  }
  table_.step->signal_and_wait(stream, RemoteFlagsOf(layer));
}

device::RemoteFlagsParams DecodeGraph::RemoteFlagsOf(int layer) const {
  return {.peers = state_.next.peers,
          .flag = inbox_.rows_flags + layer * sizeof(uint32_t),
          .layer = layer,
          .value = state_.plan,
          .timeout_us = options_.wait_timeout_us};
}

void DecodeGraph::DigestRows(device::Stream stream, int num_rows) {
  const size_t lists = slots_.shape().exchange().lists_per_layer();
  table_.digest->attended_digest(stream, {.plan = {.num_layers = config_.num_layers,
                                                   .num_rows = num_rows,
                                                   .num_kv_heads = config_.num_kv_heads,
                                                   .layer_lists = static_cast<int64_t>(lists),
                                                   .row_bytes = slots_.shape().row_bytes(),
                                                   .positions = state_.positions,
                                                   .plan = state_.plan,
                                                   .sums = state_.digest_sums,
                                                   .arrivals = state_.digest_arrivals},
                                          .lists = slots_.inbox().lists,
                                          .pages = slots_.pages(),
                                          .selected = slots_.inbox().pool_indices,
                                          .slot_pool = slots_.slot_pool(),
                                          .digests = slots_.inbox().digests + 2 * lists});
}

void DecodeGraph::Attend(device::Stream stream, int layer, const StepShape& step, bool settled, bool waits) {
  const DecodeSlotShape& shape = slots_.shape();
  DecodeKvView kv{.slot_pool = slots_.slot_pool(),
                  .dtype = shape.layout.dtype,
                  .scales = slots_.scales(),
                  .lists = slots_.inbox().lists + slots_.selection(layer, 0, 0),
                  .lists_per_kv_head = shape.lists_per_kv_head,
                  .pages = slots_.pages(),
                  .selected = slots_.inbox().pool_indices,
                  .max_count = step.variant.max_list_rows,
                  .settled = settled};
  if (step.variant.indexes) {
    kv.index_budgets = state_.index_budgets;
    kv.positions = state_.positions;
  }
  if (waits) {
    kv.remote_flags = RemoteFlagsOf(layer);
    if (layer < step.variant.hidden_layers) kv.sends = HiddenOf(layer, step.num_rows);
  }
  layers_.Attend(stream, layer, step.num_rows, kv);
}

void DecodeGraph::EnqueueLayer(device::Stream stream, int layer, const StepShape& step) {
  const DecodeParts parts = step.parts;
  const int num_rows = step.num_rows;
  const bool sums = layers_.is_shard() && parts.Has(DecodePart::kAllReduce);
  const bool waits = step.exchanges && waits_in_attention();
  const bool publishes = step.exchanges && !waits && layer < step.variant.hidden_layers;
  if (publishes) {
    fork_->Record(stream);
    fork_->Hold(side_stream_);
    table_.step->send_rows(side_stream_, HiddenOf(layer, num_rows));
    if (options_.mode == DecodeMode::kColocated) step.variant.cache->OnHidden(side_stream_, layer);
    published_->Record(side_stream_);
  }
  if (parts.Has(DecodePart::kInputNorm) && (layer == 0 || !sums)) layers_.InputNorm(stream, layer, num_rows);
  if (parts.Has(DecodePart::kQkv)) layers_.Qkv(stream, kDecode, layer, num_rows);
  if (parts.Has(DecodePart::kRope)) Rope(stream, layer, step);
  if (step.exchanges && !waits) ExchangeRows(stream, layer, step);
  // The kernel before must not be the one that begins the step, which writes the lists, nor one that awaits rows.
  const bool settled = (waits || !step.exchanges) && (layer > 0 || parts.Has(DecodePart::kRope));
  if (parts.Has(DecodePart::kAttention)) Attend(stream, layer, step, settled, waits);
  // The residual changes below: it must have been read.
  if (publishes) published_->Hold(stream);
  const DecodeSum output_sum = sums ? SumOf(DecodePart::kOutput) : DecodeSum();
  if (parts.Has(DecodePart::kOutput)) layers_.Output(stream, kDecode, layer, num_rows, sums ? &output_sum : nullptr);
  if (sums) layers_.AddOutput(stream, layer, num_rows, output_sum);
  if (parts.Has(DecodePart::kMlpNorm) && !sums) layers_.MlpNorm(stream, layer, num_rows);
  if (parts.Has(DecodePart::kGateUp)) layers_.GateUp(stream, kDecode, layer, num_rows, state_.positions);
  if (parts.Has(DecodePart::kSilu)) layers_.GatedMul(stream, kDecode, layer, num_rows);
  const DecodeSum down_sum = sums ? SumOf(DecodePart::kDown) : DecodeSum();
  if (parts.Has(DecodePart::kDown)) layers_.Down(stream, kDecode, layer, num_rows, sums ? &down_sum : nullptr);
  if (sums) layers_.AddDown(stream, layer, num_rows, down_sum);
}

void DecodeGraph::EnqueueStep(device::Stream stream, const StepShape& step) {
  const DecodeParts parts = step.parts;
  const int num_rows = step.num_rows;
  BeginStep(stream, num_rows);
  const bool colocated = options_.mode == DecodeMode::kColocated && step.exchanges;
  if (colocated) step.variant.cache->BeginPlan(stream);
  if (parts.Has(DecodePart::kEmbed)) layers_.Embed(stream, state_.next.token_ids, num_rows);
  for (int layer = 0; layer < config_.num_layers; ++layer) EnqueueLayer(stream, layer, step);
  const bool digests = options_.digests_rows && is_remote() && parts.Has(DecodePart::kExchange);
  if (digests) {
    fork_->Record(stream);
    fork_->Hold(side_stream_);
    DigestRows(side_stream_, num_rows);
    published_->Record(side_stream_);
  }
  const bool sums = layers_.is_shard() && parts.Has(DecodePart::kAllReduce);  // down's gives the final norm
  if (parts.Has(DecodePart::kFinalNorm) && !sums) layers_.FinalNorm(stream, num_rows);
  if (parts.Has(DecodePart::kLmHead)) layers_.LmHead(stream, num_rows);
  if (sums) GatherLogits(stream, num_rows);
  if (parts.Has(DecodePart::kSample) && !options_.draws_apart) {
    layers_.Sample(stream, num_rows, state_.next.draws, state_.next.token_ids, state_.logprobs);
  }
  if (digests) published_->Hold(stream);
  if (colocated) step.variant.cache->EndPlan();
}

absl::StatusOr<std::unique_ptr<device::Graph>> DecodeGraph::Capture(int bucket, DecodeParts parts,
                                                                    const DecodeVariant& variant) {
  const bool selects = is_remote() || (options_.mode == DecodeMode::kColocated && variant.cache != nullptr);
  const StepShape step{
      .num_rows = bucket, .parts = parts, .variant = variant, .exchanges = selects && parts.Has(DecodePart::kExchange)};
  return device_.Capture(stream_, [this, step](device::Stream stream) { EnqueueStep(stream, step); });
}

absl::Status DecodeGraph::Prepare(int num_rows, const DecodeVariant& variant) {
  std::unique_ptr<device::Graph>& graph = graphs_[{BucketFor(num_rows), variant.key}];
  if (graph != nullptr) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(graph, Capture(std::min(BucketFor(num_rows), max_rows()), DecodeParts::All(), variant));
  return absl::OkStatus();
}

absl::Status DecodeGraph::Step(int num_rows, const DecodeVariant& variant) {
  WINNOW_RETURN_IF_ERROR(Prepare(num_rows, variant));
  graphs_[{BucketFor(num_rows), variant.key}]->Launch(stream_);
  return absl::OkStatus();
}

void DecodeGraph::DrawTokens(int num_rows, const TokenMasks& masks) {
  WINNOW_CHECK(options_.draws_apart);
  layers_.Sample(stream_, num_rows, state_.next.draws, state_.next.token_ids, state_.logprobs, masks);
}

void DecodeGraph::ForgetVariants(uint64_t bits) {
  std::erase_if(graphs_, [bits](const auto& graph) { return (graph.first.second & bits) != 0; });
}

absl::StatusOr<std::vector<uint32_t>> DecodeGraph::TokensOfLastSteps(uint32_t steps) {
  WINNOW_CHECK(steps <= options_.token_log_steps);
  std::vector<uint32_t> log(static_cast<size_t>(options_.token_log_steps) * max_rows());
  uint32_t plan = 0;
  device_.CopyAsync(log.data(), state_.token_log, log.size() * sizeof(uint32_t), stream_);
  device_.CopyAsync(&plan, state_.plan, sizeof(plan), stream_);
  WINNOW_RETURN_IF_ERROR(device_.Synchronize(stream_));
  std::vector<uint32_t> tokens;
  for (uint32_t n = plan + 1 - steps; n != plan + 1; ++n) {
    const auto row = log.begin() + static_cast<std::ptrdiff_t>(n % options_.token_log_steps) * max_rows();
    tokens.insert(tokens.end(), row, row + max_rows());
  }
  return tokens;
}

absl::StatusOr<std::vector<uint32_t>> DecodeGraph::NextTokens() {
  std::vector<uint32_t> tokens(max_rows());
  device_.CopyAsync(tokens.data(), state_.next.token_ids, tokens.size() * sizeof(uint32_t), stream_);
  WINNOW_RETURN_IF_ERROR(device_.Synchronize(stream_));
  return tokens;
}

absl::StatusOr<std::vector<float>> DecodeGraph::LastLogits(int num_rows) {
  std::vector<float> logits(static_cast<size_t>(num_rows) * config_.vocab_size);
  device_.CopyAsync(logits.data(), layers_.logits(), logits.size() * sizeof(float), stream_);
  WINNOW_RETURN_IF_ERROR(device_.Synchronize(stream_));
  return logits;
}

absl::Status DecodeGraph::WaitError() {
  switch (std::atomic_ref(*error_word()).load()) {
    case 0:
      return absl::OkStatus();
    case device::kWaitAborted:
      return absl::AbortedError("a decode step was told to stop waiting");
    default:
      return absl::DeadlineExceededError(
          absl::StrCat("the cache rank's GPU sent nothing for ", options_.wait_timeout_us / 1000, " ms"));
  }
}

void DecodeGraph::Abort() {
  std::atomic_ref(*static_cast<uint32_t*>(words_->data())).store(1);
}

}  // namespace winnow
