#include "cache_rank/step/device/gpu_peer_link.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "common/base/status.h"
#include "common/selection/attended_set.h"
#include "common/selection/mass_positions.h"
#include "transport/wire/wire.h"

namespace winnow {

GpuPeerLink::GpuPeerLink(const device::DeviceTable* table, device::Device* device, SequenceCopies* store,
                         const PeerOffer& offer)
    : table_(table),
      device_(device),
      store_(store),
      shard_(offer.shard),
      exchange_(ExchangeOf(offer, store->kv().shape().layout)),
      pool_base_(offer.spec.sink_tokens + wire::RingTokens(offer.spec.recent_tokens, kBlockTokens, kSlotPageTokens)),
      stream_(device->NewStream(true)),
      batch_rows_(offer.max_rows) {}

absl::StatusOr<std::unique_ptr<GpuPeerLink>> GpuPeerLink::Create(const device::DeviceTable* table,
                                                                 device::Device* device, SequenceCopies* store,
                                                                 const DeviceSelection::Model& model,
                                                                 const PeerOffer& offer) {
  std::unique_ptr<GpuPeerLink> peer_link(new GpuPeerLink(table, device, store, offer));
  WINNOW_RETURN_IF_ERROR(peer_link->Allocate());
  WINNOW_RETURN_IF_ERROR(peer_link->Connect(model, offer));
  return peer_link;
}

device::ExchangeShape GpuPeerLink::ExchangeOf(const PeerOffer& offer, const KvLayout& layout) {
  return {.layout = layout,
          .max_rows = offer.max_rows,
          .hidden_size = offer.hidden_size,
          .max_budget = GreatestHeadBudget(offer.spec, layout.num_lists())};
}

size_t GpuPeerLink::CarveGather(const device::ExchangeShape& exchange, void* region, GatherArrays* arrays) {
  const size_t entries = exchange.max_rows * exchange.layout.num_lists();
  device::Arena arena(region);
  arrays->lists = arena.TakeArray<device::SelectionList>(entries);
  arrays->positions = arena.TakeArray<uint32_t>(entries);
  arrays->ones = arena.TakeArray<uint32_t>(entries);
  arrays->kv = arena.Take<std::byte>(entries * exchange.layout.row_bytes());
  return arena.used_bytes();
}

size_t GpuPeerLink::PastQueryBytes(const DeviceKvShape& kv) {
  const KvLayout& layout = kv.layout;
  return size_t{kv.ring_queries} * layout.num_layers * layout.num_query_heads * layout.head_dim * sizeof(float);
}

size_t GpuPeerLink::DeviceBytes(const device::DeviceTable* table, const DeviceKvShape& kv, const SelectionSpec& spec,
                                const DeviceSelection::Model& model, const device::ExchangeShape& exchange) {
  const std::unique_ptr<DeviceKvStore> store = DeviceKvStore::Unallocated(kv);
  const std::unique_ptr<DevicePlan> plan = DevicePlan::Unallocated(store.get(), spec, exchange.max_rows);
  GatherArrays gather;
  return CacheInboxBytes(exchange) + device::PushStagingBytes(exchange.layout) +
         CarveGather(exchange, nullptr, &gather) + plan->DeviceBytes() +
         DeviceSelection::DeviceBytes(table, store.get(), plan.get(), model, exchange);
}

absl::Status GpuPeerLink::Allocate() {
  const size_t entries = exchange_.max_rows * layout().num_lists(), kv_bytes = entries * layout().row_bytes();
  WINNOW_ASSIGN_OR_RETURN(inbox_memory_, device_->Allocate(CacheInboxBytes(exchange_)));
  WINNOW_ASSIGN_OR_RETURN(staging_, PushStaging::Create(device_, layout()));
  inbox_ = CacheInboxAt(exchange_, inbox_memory_->data());
  device_->FillAsync(inbox_memory_->data(), 0, inbox_memory_->bytes(), stream_);
  const auto carve_pinned = [&](void* region) {
    device::Arena arena(region);
    for (Readback& readback : readbacks_) {
      readback.lists = arena.TakeArray<device::SelectionList>(entries);
      readback.positions = arena.TakeArray<uint32_t>(entries);
      readback.kv = arena.Take<std::byte>(kv_bytes);
      readback.masses = arena.TakeArray<device::MeasuredMass>(exchange_.masses_per_plan());
      readback.counts = arena.TakeArray<uint32_t>(2 * layout().num_layers * exchange_.counts_per_layer());
      readback.ended = arena.TakeArray<uint32_t>(1);
    }
    return arena.used_bytes();
  };
  WINNOW_ASSIGN_OR_RETURN(gather_memory_, device_->Allocate(CarveGather(exchange_, nullptr, &gather_)));
  CarveGather(exchange_, gather_memory_->data(), &gather_);
  WINNOW_ASSIGN_OR_RETURN(pinned_, device_->AllocatePinned(carve_pinned(nullptr)));
  carve_pinned(pinned_->data());
  if (const size_t bytes = PastQueryBytes(store_->kv().shape()); bytes > 0) {
    WINNOW_ASSIGN_OR_RETURN(host_queries_, device_->AllocatePinned(bytes));
    queries_copied_ = device_->NewEvent();
  }
  for (Readback& readback : readbacks_) {
    *readback.ended = 0;
    readback.event = device_->NewEvent();
  }
  const std::vector<uint32_t> ones(entries, 1);
  device_->CopyAsync(gather_.ones, ones.data(), entries * sizeof(uint32_t), stream_);
  return device_->Synchronize(stream_);
}

absl::Status GpuPeerLink::Connect(const DeviceSelection::Model& model, const PeerOffer& offer) {
  const device::DeviceMemory* exposed[] = {inbox_memory_.get(), &staging_->memory()};
  WINNOW_ASSIGN_OR_RETURN(link_, device::PeerLink::Create(*device_, exposed));
  WINNOW_RETURN_IF_ERROR(link_->Connect(offer.address));
  if (link_->num_regions() != 3 || link_->region_bytes(1) < InferenceInboxBytes(exchange_) ||
      link_->region_bytes(2) < InferenceFlagsBytes(exchange_)) {
    return absl::FailedPreconditionError("the offered peer link is of another shape");
  }
  const device::InferenceInbox peer = InferenceInboxAt(exchange_, link_->region(1), link_->region(2), link_->region(0));
  WINNOW_ASSIGN_OR_RETURN(plan_,
                          DevicePlan::Create(table_, device_, &store_->kv(), store_->spec(), exchange_.max_rows));
  plan_->Upload(stream_);
  WINNOW_ASSIGN_OR_RETURN(selection_,
                          DeviceSelection::Create(table_, device_, &store_->kv(), plan_.get(), model, exchange_));
  SelectGraph::Options options;
  options.timeout_us = wire::kPeerTimeoutOfCacheUs;
  options.abort_word = link_->abort_word();
  options.error_word = link_->error_word();
  options.digests_rows = true;
  WINNOW_ASSIGN_OR_RETURN(graph_, SelectGraph::Create(table_, device_, &store_->kv(), plan_.get(), selection_.get(),
                                                      inbox_, peer, options));
  return device_->Synchronize(stream_);
}

GpuPeerLink::~GpuPeerLink() {
  if (link_ != nullptr) link_->Abort(absl::CancelledError("the peer link was closed"));
  (void)device_->Synchronize(stream_);
  (void)device_->Synchronize(store_->stream());  // which reads the places of pushes
}

absl::Status GpuPeerLink::Stage(uint64_t push, const CachedSequence* sequence, int layer, uint32_t first,
                                uint32_t count) {
  if (count > device::kPushStagingTokens) return absl::InvalidArgumentError(absl::StrCat("a push of ", count, " rows"));
  const size_t bytes = sequence == nullptr ? 0 : layout().num_kv_heads * count * layout().row_bytes();
  WINNOW_RETURN_IF_ERROR(staging_->CheckNext(push, bytes));  // before the copy has rows of another push
  if (sequence != nullptr) store_->OnDeviceRows(*sequence, layer, first, count, staging_->rows(push));
  return staging_->Begin(push, bytes, store_->stream());
}

absl::Status GpuPeerLink::AssignRow(int batch_row, const CachedSequence& sequence, std::span<const uint32_t> pages) {
  if (batch_row < 0 || batch_row >= exchange_.max_rows)
    return absl::InvalidArgumentError(absl::StrCat("batch row ", batch_row));
  if (sequence.shard != shard_) return absl::FailedPreconditionError("the peer link serves other kv heads");
  if (!(sequence.spec == store_->spec())) return absl::FailedPreconditionError("the sequence selects in another way");
  const uint32_t position = sequence.kv.watermark();
  // Sinks are attended whether they are there or not.
  if (position < sequence.spec.sink_tokens) return absl::FailedPreconditionError("the sequence is too short");
  const size_t per_list = pages.size() / layout().num_lists();
  if (pages.size() % layout().num_lists() != 0) return absl::InvalidArgumentError("slot pages of other lists");
  for (const uint32_t pool_slots : sequence.pool_slots) {
    if ((pool_base_ + pool_slots + kSlotPageTokens - 1) / kSlotPageTokens > per_list) {
      return absl::InvalidArgumentError("slot pages do not reach the pools' ends");
    }
  }
  const uint64_t slots = link_->region_bytes(0) / layout().row_bytes();
  for (const uint32_t page : pages) {
    if ((uint64_t{page} + 1) * kSlotPageTokens > slots) return absl::InvalidArgumentError("a slot page out of range");
  }
  WINNOW_ASSIGN_OR_RETURN(std::shared_ptr<SequenceCopy> copy, store_->Complete(sequence, stream_));
  WINNOW_RETURN_IF_ERROR(LoadPastQueries(sequence, copy->place()));
  WINNOW_RETURN_IF_ERROR(store_->kv().SetPeerPages(copy->place(), pages, stream_));
  store_->kv().ForgetResidency(copy->place(), stream_);
  ReleaseRow(sequence.id);
  ClearRow(batch_row);
  batch_rows_[batch_row] = {.sequence_id = sequence.id,
                            .attach_epoch = sequence.attach_epoch,
                            .copy = copy,
                            .pool_slots = sequence.pool_slots,
                            .next_position = position,
                            .prompt_tokens = sequence.prompt_tokens,
                            .is_planned = false};
  return absl::OkStatus();
}

// The device goes on with the row until the next plan says otherwise, whoever that plan is for.
void GpuPeerLink::ClearRow(int batch_row) {
  if (batch_rows_[batch_row].is_planned) {
    plan_->Leave(batch_row);
    plan_changed_ = true;
  }
  batch_rows_[batch_row] = {};
}

void GpuPeerLink::ReleaseRow(uint64_t sequence_id) {
  for (size_t batch_row = 0; batch_row < batch_rows_.size(); ++batch_row) {
    if (batch_rows_[batch_row].sequence_id == sequence_id) ClearRow(static_cast<int>(batch_row));
  }
}

// Those of host memory end where the sequence last decoded by frames: then it has to be attached again, which goes back
// to there.
absl::Status GpuPeerLink::LoadPastQueries(const CachedSequence& sequence, uint32_t place) {
  const uint32_t ring = store_->kv().shape().ring_queries, end = sequence.kv.watermark();
  if (ring == 0) return absl::OkStatus();
  const size_t floats = static_cast<size_t>(layout().num_query_heads) * layout().head_dim;
  for (const LayerSelection& layer : sequence.layers) {
    if (layer.queries.end() != end) return absl::FailedPreconditionError("the newest queries are not here");
  }
  WINNOW_RETURN_IF_ERROR(queries_copied_->Wait());
  absl::Status loaded;
  for (int layer = 0; layer < layout().num_layers; ++layer) {
    auto* const host = static_cast<float*>(host_queries_->data()) + static_cast<size_t>(layer) * ring * floats;
    const QueryRing& queries = sequence.layers[layer].queries;
    const uint32_t count = std::min(ring, end - queries.first());
    for (uint32_t i = 0; i < count; ++i) std::copy_n(queries.pre(end - count + i), floats, host + i * floats);
    loaded.Update(store_->kv().LoadPastQueries(place, layer, end, count, host, stream_));
  }
  queries_copied_->Record(stream_);  // the next sequence waits for it, whatever becomes of this one
  return loaded;
}

bool GpuPeerLink::HasRow(const Row& row) const {
  if (row.batch_row < 0 || row.batch_row >= exchange_.max_rows) return false;
  const RowEntry& entry = batch_rows_[row.batch_row];
  return entry.sequence_id == row.sequence_id && entry.attach_epoch == row.attach_epoch &&
         entry.next_position == row.position && !entry.copy.expired();
}

void GpuPeerLink::PlanRows(uint32_t step, std::span<const Row> rows) {
  std::vector<bool> decodes(batch_rows_.size());
  for (const Row& row : rows) decodes[row.batch_row] = true;
  bool changed = std::exchange(plan_changed_, false) || step != plan_->next_plan();
  plan_->SetNextPlan(step);
  const std::vector<uint32_t> pool_bases(layout().num_lists(), pool_base_);
  for (size_t batch_row = 0; batch_row < batch_rows_.size(); ++batch_row) {
    RowEntry& entry = batch_rows_[batch_row];
    if (entry.is_planned == decodes[batch_row]) continue;
    changed = true;
    entry.is_planned = decodes[batch_row];
    if (!decodes[batch_row]) {
      plan_->Leave(static_cast<int>(batch_row));
      continue;
    }
    plan_->SetRow(static_cast<int>(batch_row), entry.copy.lock()->place(), entry.next_position,
                  {.slot_pool = link_->region(0), .pool_bases = pool_bases, .pool_slots = entry.pool_slots},
                  entry.prompt_tokens);
  }
  if (changed) plan_->Upload(stream_);
}

bool GpuPeerLink::Measures(const Row& row) const {
  const SelectionSpec& spec = store_->spec();
  const uint32_t prompt_tokens = batch_rows_[row.batch_row].prompt_tokens;
  return MeasuresMass(spec, row.position, prompt_tokens) && AnyList(0, layout().num_lists(), [&](size_t list) {
           return IsSparse(spec, list, row.position, prompt_tokens);
         });
}

absl::Status GpuPeerLink::Launch(uint32_t step, std::span<const Row> rows) {
  WINNOW_RETURN_IF_ERROR(status());
  if (launched_ - taken_ == readbacks_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step, " came while ", readbacks_.size(), " before it are under way"));
  }
  // Numbers wrap around.
  if (static_cast<int32_t>(step - plan_->next_plan()) < 0) {
    return absl::InvalidArgumentError(absl::StrCat("step ", step, " behind step ", plan_->next_plan() - 1));
  }
  PlanRows(step, rows);
  const bool measures = std::any_of(rows.begin(), rows.end(), [&](const Row& row) { return Measures(row); });
  WINNOW_RETURN_IF_ERROR(graph_->Launch(stream_, measures));
  EnqueueReadback(step, rows, measures);
  for (const Row& row : rows) ++batch_rows_[row.batch_row].next_position;
  absl::Status launched = device_->CheckLaunches();
  if (!launched.ok()) link_->Abort(launched);
  return launched;
}

void GpuPeerLink::EnqueueReadback(uint32_t plan, std::span<const Row> rows, bool measures) {
  Readback& readback = readbacks_[++launched_ % readbacks_.size()];
  readback.plan = plan;
  readback.rows.assign(rows.begin(), rows.end());
  readback.measures = measures;
  readback.copies.clear();
  readback.prompt_tokens.clear();
  const size_t lists = layout().num_lists(), entries = rows.size() * lists;
  for (size_t i = 0; i < rows.size(); ++i) {
    const RowEntry& entry = batch_rows_[rows[i].batch_row];
    readback.copies.push_back(entry.copy.lock());
    readback.prompt_tokens.push_back(entry.prompt_tokens);
    for (size_t list = 0; list < lists; ++list) {
      readback.lists[i * lists + list] = {.first_block = store_->kv().FirstBlock(readback.copies[i]->place(), list),
                                          .num_keys = 0,
                                          .first = 0,
                                          .last = 0,
                                          .budget = 0,
                                          .query = 0};
      readback.positions[i * lists + list] = rows[i].position;
    }
  }
  if (entries > 0) {
    device_->CopyAsync(gather_.lists, readback.lists, entries * sizeof(device::SelectionList), stream_);
    device_->CopyAsync(gather_.positions, readback.positions, entries * sizeof(uint32_t), stream_);
    table_->cache->gather(stream_, store_->kv().row_pool(), layout().row_bytes(), gather_.lists, store_->kv().blocks(),
                          gather_.positions, gather_.ones, static_cast<int>(entries), 1, gather_.kv);
    device_->CopyAsync(readback.kv, gather_.kv, entries * layout().row_bytes(), stream_);
  }
  if (measures) {
    device_->CopyAsync(readback.masses, selection_->masses(), selection_->num_masses() * sizeof(device::MeasuredMass),
                       stream_);
  }
  device_->CopyAsync(readback.counts, selection_->counts(0), selection_->num_counts() * sizeof(uint32_t), stream_);
  device_->CopyAsync(readback.ended, plan_->plan(), sizeof(uint32_t), stream_);
  readback.event->Record(stream_);
}

std::span<const float> GpuPeerLink::MassesOf(const Readback& readback, const Row& row) {
  if (!readback.measures) return {};
  const size_t heads = layout().num_kv_heads;
  masses_of_row_.clear();
  for (size_t list = 0; list < layout().num_lists(); ++list) {
    const size_t entry = (list / heads * exchange_.max_rows + row.batch_row) * heads + list % heads;
    masses_of_row_.push_back(readback.masses[entry].mass);
  }
  return masses_of_row_;
}

DevicePeerLink::RowCounts GpuPeerLink::CountsOf(const Readback& readback, size_t row) const {
  const size_t heads = layout().num_kv_heads, per_layer = exchange_.counts_per_layer();
  const uint32_t* const pushed = readback.counts + layout().num_layers * per_layer;
  RowCounts counts;
  for (size_t list = 0; list < layout().num_lists(); ++list) {
    const size_t entry = list / heads * per_layer + readback.rows[row].batch_row * heads + list % heads;
    counts.sent += pushed[entry];
    if (!IsSparse(store_->spec(), list, readback.rows[row].position, readback.prompt_tokens[row])) continue;
    counts.lookups += readback.counts[entry];
    counts.misses += pushed[entry];
  }
  return counts;
}

void GpuPeerLink::TakeRows(bool wait, const TakeRow& take) {
  while (has_plans()) {
    Readback& readback = readbacks_[(taken_ + 1) % readbacks_.size()];
    if (wait && !readback.event->Wait().ok()) return;
    if (std::atomic_ref<uint32_t>(*readback.ended).load(std::memory_order_acquire) != readback.plan) {
      // Of a GPU that has failed nothing comes any more.
      if (const absl::Status failed = readback.event->HasPassed().status(); !failed.ok()) link_->Abort(failed);
      return;
    }
    ++taken_;
    const bool good = graph_->error() == 0;
    const size_t row_bytes = layout().num_lists() * layout().row_bytes();
    for (size_t i = 0; good && i < readback.rows.size(); ++i) {
      readback.copies[i]->TakePosition(readback.rows[i].position);
      const Row& row = readback.rows[i];
      take(row, readback.kv + i * row_bytes, MassesOf(readback, row), CountsOf(readback, i));
    }
    readback.copies.clear();
  }
}

}  // namespace winnow
