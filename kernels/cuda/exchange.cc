#include "kernels/cuda/exchange.h"

#include <utility>

namespace winnow::cuda {
namespace {

class Carver {
 public:
  explicit Carver(void* region) : region_(static_cast<std::byte*>(region)) {}
  template <typename T>
  void Take(T*& pointer, size_t bytes) {
    if (region_ != nullptr) pointer = reinterpret_cast<T*>(region_ + used_);
    used_ += (bytes + 255) / 256 * 256;
  }
  size_t used() const { return used_; }

 private:
  std::byte* const region_;
  size_t used_ = 0;
};

std::pair<CacheInbox, size_t> CarveCache(const ExchangeShape& shape, void* region) {
  const size_t layers = shape.layout.num_layers, rows = layers * shape.max_rows;
  CacheInbox inbox;
  Carver carver(region);
  carver.Take(inbox.hidden, rows * shape.hidden_size * sizeof(float));
  carver.Take(inbox.queries, rows * shape.layout.num_query_heads * shape.layout.head_dim * sizeof(float));
  std::byte* kv = nullptr;
  carver.Take(kv, rows * shape.layout.num_kv_heads * shape.layout.row_bytes());
  inbox.rows = kv;
  carver.Take(inbox.hidden_flags, layers * sizeof(uint32_t));
  carver.Take(inbox.rows_flags, layers * sizeof(uint32_t));
  return {inbox, carver.used()};
}

std::pair<InferenceInbox, size_t> CarveInference(const ExchangeShape& shape, void* region) {
  const size_t layers = shape.layout.num_layers, lists = layers * shape.lists_per_layer();
  InferenceInbox inbox;
  Carver carver(region);
  carver.Take(inbox.lists, lists * sizeof(AttentionList));
  carver.Take(inbox.pool_indices, lists * shape.max_budget * sizeof(uint32_t));
  carver.Take(inbox.delta_flags, layers * sizeof(uint32_t));
  return {inbox, carver.used()};
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
