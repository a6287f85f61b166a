#include "kernels/cuda/exchange.h"

#include <utility>

#include "kernels/cuda/arena.h"

namespace winnow::cuda {
namespace {

std::pair<CacheInbox, size_t> CarveCache(const ExchangeShape& shape, void* region) {
  const size_t layers = shape.layout.num_layers, rows = layers * shape.max_rows;
  CacheInbox inbox;
  Arena arena(region);
  inbox.hidden = arena.TakeArray<float>(rows * shape.hidden_size);
  inbox.queries = arena.TakeArray<float>(rows * shape.layout.num_query_heads * shape.layout.head_dim);
  inbox.rows = arena.Take(rows * shape.layout.num_kv_heads * shape.layout.row_bytes());
  inbox.hidden_flags = arena.TakeArray<uint32_t>(layers);
  inbox.rows_flags = arena.TakeArray<uint32_t>(layers);
  return {inbox, arena.used_bytes()};
}

std::pair<InferenceInbox, size_t> CarveInference(const ExchangeShape& shape, void* region) {
  const size_t layers = shape.layout.num_layers, lists = layers * shape.selections_per_layer();
  InferenceInbox inbox;
  Arena arena(region);
  inbox.lists = arena.TakeArray<AttentionList>(lists);
  inbox.pool_indices = arena.TakeArray<uint32_t>(lists * shape.max_budget);
  inbox.delta_flags = arena.TakeArray<uint32_t>(layers);
  inbox.masses = arena.TakeArray<MeasuredMass>(2 * shape.masses_per_plan());
  inbox.counts = arena.TakeArray<uint32_t>(2 * layers * shape.counts_per_layer());
  inbox.counts_flag = arena.TakeArray<uint32_t>(1);
  inbox.digests = arena.TakeArray<RowDigest>(3 * shape.lists_per_layer());
  return {inbox, arena.used_bytes()};
}

}  // namespace

size_t CacheInboxBytes(const ExchangeShape& shape) {
  return CarveCache(shape, nullptr).second;
}

CacheInbox CacheInboxAt(const ExchangeShape& shape, void* region) {
  return CarveCache(shape, region).first;
}

size_t InferenceInboxBytes(const ExchangeShape& shape) {
  return CarveInference(shape, nullptr).second;
}

InferenceInbox InferenceInboxAt(const ExchangeShape& shape, void* region, void* slot_pool) {
  InferenceInbox inbox = CarveInference(shape, region).first;
  inbox.slot_pool = slot_pool;
  return inbox;
}

}  // namespace winnow::cuda
