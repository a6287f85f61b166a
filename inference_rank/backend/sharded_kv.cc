#include "inference_rank/backend/sharded_kv.h"

namespace winnow {

class ShardedDecodeKv::Part final : public DecodeKv {
 public:
  Part(ShardedDecodeKv& all, int shard, uint32_t any_slot)
      : all_(all), shard_(shard), heads_(all.shards_.kv_heads(shard)), any_slot_{any_slot} {}

  int Lookahead() const override { return all_.whole_.Lookahead(); }
  bool NeedsHidden(int layer) const override { return all_.whole_.NeedsHidden(layer); }
  bool SlotsComeFirst(int layer) const override { return all_.whole_.SlotsComeFirst(layer); }
  bool WaitsForPartials() const override { return all_.whole_.WaitsForPartials(); }
  void PlacesOfRows(HeadRange heads, std::span<void*> places) const override {
    all_.whole_.PlacesOfRows(heads, places);
  }

  void Publish(const DecodeLayerOutput& output) override {
    if (shard_ == 0) all_.output_ = output;
    all_.Ask(shard_, Request::kPublish, output.layer);
  }

  void AwaitSlots(int layer, SlotLists& lists) override {
    if (!all_.Ask(shard_, Request::kSlots, layer)) return AddAnything(lists);
    const int group = all_.shards_.group_size, first = heads_.first * group, end = first + heads_.count * group;
    const int heads_of_row = all_.shards_.num_shards * heads_.count * group;
    for (size_t list = 0, head = 0; list < all_.lists_.size(); ++list) {
      const int of_row = static_cast<int>(head % heads_of_row), readers = static_cast<int>(all_.lists_.heads()[list]);
      if (of_row >= first && of_row < end) lists.Add(all_.lists_.slots(list), readers);
      head += readers;
    }
  }

  std::span<const PartialAttention> AwaitPartials(int layer) override {
    partials_.clear();
    if (!all_.Ask(shard_, Request::kPartials, layer)) return partials_;
    for (const PartialAttention& partial : all_.partials_) {
      const int head = partial.kv_head - heads_.first;
      if (head >= 0 && head < heads_.count) partials_.push_back(partial);
    }
    return partials_;
  }

 private:
  void AddAnything(SlotLists& lists) const {
    for (int i = 0; i < all_.num_rows_ * heads_.count; ++i) lists.Add({&any_slot_, 1}, all_.shards_.group_size);
  }

  ShardedDecodeKv& all_;
  const int shard_;
  const HeadRange heads_;
  const uint32_t any_slot_;
  std::vector<PartialAttention> partials_;
};

ShardedDecodeKv::ShardedDecodeKv(DecodeKv& whole, ShardThreads& threads, const HeadShards& shards,
                                 std::span<const uint32_t> first_slots, int num_rows)
    : whole_(whole), threads_(threads), shards_(shards), num_rows_(num_rows) {
  for (int shard = 0; shard < shards.num_shards; ++shard) {
    parts_.push_back(std::make_unique<Part>(*this, shard, first_slots[shard]));
  }
}

ShardedDecodeKv::~ShardedDecodeKv() = default;

DecodeKv& ShardedDecodeKv::part(int shard) {
  return *parts_[shard];
}

bool ShardedDecodeKv::Ask(int shard, Request request, int layer) {
  if (shard == 0) {
    request_ = request;
    layer_ = layer;
  }
  return threads_.AwaitAll();
}

void ShardedDecodeKv::Serve() {
  switch (request_) {
    case Request::kPublish:
      return whole_.Publish(output_);
    case Request::kSlots:
      lists_.Clear();
      return whole_.AwaitSlots(layer_, lists_);
    case Request::kPartials:
      partials_ = whole_.AwaitPartials(layer_);
      return;
  }
}

class ShardedPrefillKv::Part final : public PrefillKv {
 public:
  Part(ShardedPrefillKv& all, int shard, HeadRange heads) : all_(all), shard_(shard), heads_(heads) {}

  Rows Destination(int layer, int first_kv_head) override { return all_.whole_.Destination(layer, first_kv_head); }
  int QueriesWanted(int num_tokens) const override { return all_.whole_.QueriesWanted(num_tokens); }
  Rows Publish(int layer, const std::byte* kv_rows, const float* q_pre_rope) override {
    if (shard_ == 0) {
      all_.layer_ = layer;
      all_.kv_rows_ = kv_rows;
      all_.q_pre_rope_ = q_pre_rope;
    }
    all_.threads_.AwaitAll();
    return Destination(layer, heads_.first);
  }

 private:
  ShardedPrefillKv& all_;
  const int shard_;
  const HeadRange heads_;
};

ShardedPrefillKv::ShardedPrefillKv(PrefillKv& whole, ShardThreads& threads, const HeadShards& shards)
    : whole_(whole), threads_(threads) {
  for (int shard = 0; shard < shards.num_shards; ++shard) {
    parts_.push_back(std::make_unique<Part>(*this, shard, shards.kv_heads(shard)));
  }
}

ShardedPrefillKv::~ShardedPrefillKv() = default;

PrefillKv& ShardedPrefillKv::part(int shard) {
  return *parts_[shard];
}

void ShardedPrefillKv::Serve() {
  whole_.Publish(layer_, kv_rows_, q_pre_rope_);
}

}  // namespace winnow
