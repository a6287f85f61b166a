#include "kernels/device/params/exchange.h"

#include <utility>

#include "kernels/device/arena.h"

namespace winnow::device {
namespace {

std::pair<CacheInboxOffsets, size_t> CarveCache(const ExchangeShape& shape) {
  const size_t layers = shape.layout.num_layers, rows = layers * shape.max_rows;
  CacheInboxOffsets offsets;
  Arena arena(nullptr);
  const auto take = [&](size_t bytes) {
    const size_t offset = arena.used_bytes();
    arena.Take(bytes);
    return offset;
  };
  offsets.hidden = take(rows * shape.hidden_size * sizeof(float));
  offsets.queries = take(rows * shape.layout.num_query_heads * shape.layout.head_dim * sizeof(float));
  offsets.rows = take(rows * shape.layout.num_kv_heads * shape.layout.row_bytes());
  offsets.hidden_flags = take(layers * sizeof(uint32_t));
  offsets.rows_flags = take(layers * sizeof(uint32_t));
  return {offsets, arena.used_bytes()};
}

size_t CarveRows(const ExchangeShape& shape, void* region, InferenceInbox* inbox) {
  const size_t lists = shape.layout.num_layers * shape.selections_per_layer();
  Arena arena(region);
  inbox->lists = arena.TakeArray<AttentionList>(lists);
  inbox->pool_indices = arena.TakeArray<uint32_t>(lists * shape.max_budget);
  inbox->masses = arena.TakeArray<MeasuredMass>(2 * shape.masses_per_plan());
  inbox->digests = arena.TakeArray<RowDigest>(3 * shape.lists_per_layer());
  return arena.used_bytes();
}

size_t CarveFlags(const ExchangeShape& shape, void* region, InferenceInbox* inbox) {
  const size_t layers = shape.layout.num_layers;
  Arena arena(region);
  inbox->delta_flags = arena.TakeArray<uint32_t>(layers);
  inbox->counts = arena.TakeArray<uint32_t>(2 * layers * shape.counts_per_layer());
  inbox->counts_flag = arena.TakeArray<uint32_t>(1);
  return arena.used_bytes();
}

}  // namespace

size_t CacheInboxBytes(const ExchangeShape& shape) {
  return CarveCache(shape).second;
}

CacheInboxOffsets OffsetsInCacheInbox(const ExchangeShape& shape) {
  return CarveCache(shape).first;
}

CacheInbox CacheInboxAt(const ExchangeShape& shape, void* region) {
  const CacheInboxOffsets offsets = OffsetsInCacheInbox(shape);
  auto* const first = static_cast<std::byte*>(region);
  return {.hidden = reinterpret_cast<float*>(first + offsets.hidden),
          .queries = reinterpret_cast<float*>(first + offsets.queries),
          .rows = first + offsets.rows,
          .hidden_flags = reinterpret_cast<uint32_t*>(first + offsets.hidden_flags),
          .rows_flags = reinterpret_cast<uint32_t*>(first + offsets.rows_flags)};
}

size_t InferenceInboxBytes(const ExchangeShape& shape) {
  InferenceInbox inbox;
  return CarveRows(shape, nullptr, &inbox);
}

size_t InferenceFlagsBytes(const ExchangeShape& shape) {
  InferenceInbox inbox;
  return CarveFlags(shape, nullptr, &inbox);
}

InferenceInbox InferenceInboxAt(const ExchangeShape& shape, void* region, void* flags_region, void* slot_pool) {
  InferenceInbox inbox;
  inbox.slot_pool = slot_pool;
  CarveRows(shape, region, &inbox);
  CarveFlags(shape, flags_region, &inbox);
  return inbox;
}

}  // namespace winnow::device
