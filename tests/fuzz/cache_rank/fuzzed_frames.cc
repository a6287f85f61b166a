// The frames that inference ranks send.
#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/selection/attended_set.h"
#include "tests/fuzz/cache_rank/fuzzed_cache_rank.h"

namespace winnow::fuzz {
namespace {

bool EverythingIsAttended(const CachedSequence& sequence, uint32_t position) {
  for (size_t list = 0; list < sequence.num_lists(); ++list) {
    if (!AttendsEverything(sequence.spec, list, position, sequence.prompt_tokens)) return false;
  }
  return true;
}

template <typename T>
void AppendBytes(const T& value, std::vector<std::byte>* payload) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  payload->insert(payload->end(), bytes, bytes + sizeof value);
}

}  // namespace

void FuzzedCacheRank::Deliver(Link& link, const wire::FrameHeader& header, std::span<const std::byte> payload) {
  absl::StatusOr<SendBuffer> buffer = link.channel->Allocate(payload.size());
  if (!buffer.ok()) return;  // no window, or too much for a frame
  if (!payload.empty()) std::memcpy(buffer->payload().data(), payload.data(), payload.size());
  if (!link.channel->Post(header, *std::move(buffer)).ok()) return;
  transport_->Progress();
  rows_.ExpectOthersUnchanged(store(), link.id);
  rows_.Appended(store(), link.id, [this](uint64_t id, uint32_t position) { return VariantOf(id, position); });
}

void FuzzedCacheRank::AppendRow(uint64_t id, int layer, int head, uint32_t position,
                                std::vector<std::byte>* payload) const {
  const std::vector<std::byte> row = rows_.Row(VariantOf(id, position), layer, head, position);
  payload->insert(payload->end(), row.begin(), row.end());
}

void FuzzedCacheRank::AppendFloats(size_t count, std::vector<std::byte>* payload) const {
  for (size_t i = 0; i < count; ++i) {
    const auto bits = static_cast<uint32_t>((i + payload->size()) * 2654435761u);
    float value = static_cast<float>(bits >> 8) / (1 << 23) - 1;
    if (strange_) std::memcpy(&value, &bits, sizeof value);
    AppendBytes(value, payload);
  }
}

bool FuzzedCacheRank::SendRows(Link& link, const CachedSequence& sequence, int layer, uint32_t first, uint32_t count) {
  wire::FrameHeader header{};
  header.type = wire::FrameType::kAppendRange;
  header.sequence_id = sequence.id;
  header.attach_epoch = in_.Near(sequence.attach_epoch);
  header.apply_position = first;
  header.layer_first = static_cast<uint16_t>(layer);
  header.row_count = count;
  std::vector<std::byte> payload;
  const uint32_t sent = std::min(count, 512u);  // what a forged count says more is missing
  for (int head = 0; head < sequence.layout.num_kv_heads; ++head) {
    for (uint32_t i = 0; i < sent; ++i) {
      AppendRow(sequence.id, layer, sequence.head_of_model(head), first + i, &payload);
    }
  }
  Deliver(link, header, payload);
  return link.channel->failed().ok();
}

void FuzzedCacheRank::SendQueries(Link& link, const CachedSequence& sequence, int layer, uint32_t first,
                                  uint32_t count) {
  wire::FrameHeader header{};
  header.type = wire::FrameType::kPromptQueries;
  header.sequence_id = sequence.id;
  header.attach_epoch = sequence.attach_epoch;
  header.apply_position = first;
  header.layer_first = static_cast<uint16_t>(layer);
  header.row_count = count;
  std::vector<std::byte> payload;
  AppendFloats(size_t{std::min(count, 64u)} * sequence.layout.num_query_heads * layout().head_dim, &payload);
  Deliver(link, header, payload);
}

// What is left of the prompt, as a correct rank sends it: its last rows may be cut off.
void FuzzedCacheRank::SendPrompt() {
  const CachedSequence* const sequence = AnySequence();
  if (sequence == nullptr) return;
  Link* const link = LinkOf(*sequence);
  if (link == nullptr) return;
  DrawVariant();
  const uint32_t end = std::min(in_.Near(sequence->prompt_tokens), sequence->kv.max_positions());
  const uint64_t id = sequence->id;
  const KvShard shard = sequence->shard;
  for (int layer = shard.first_layer; layer <= shard.last_layer(); ++layer) {
    const uint32_t here = sequence->kv.rows(layer - shard.first_layer);
    if (here < end && !SendRows(*link, *sequence, layer, here, end - here)) return;
    const uint32_t queries = std::min(end, sequence->spec.window + 1);
    if (!IsDense(sequence->spec)) SendQueries(*link, *sequence, layer, end - queries, queries);
    if (store().Find(id) == nullptr) return;
  }
}

void FuzzedCacheRank::SendRange() {
  const CachedSequence* const sequence = AnySequence();
  if (sequence == nullptr) return;
  Link* const link = LinkOf(*sequence);
  if (link == nullptr) return;
  DrawVariant();
  const uint32_t layer =
      in_.Near(static_cast<uint32_t>(sequence->shard.first_layer) + in_.Below(sequence->layers.size()));
  const uint32_t local = layer - static_cast<uint32_t>(sequence->shard.first_layer);
  const uint32_t here = local < sequence->layers.size() ? sequence->kv.rows(static_cast<int>(local)) : 0;
  SendRows(*link, *sequence, static_cast<uint16_t>(layer), in_.Near(here), in_.Near(in_.Below(100)));
}

void FuzzedCacheRank::SendPromptQueries() {
  const CachedSequence* const sequence = AnySequence();
  if (sequence == nullptr) return;
  Link* const link = LinkOf(*sequence);
  if (link == nullptr) return;
  DrawVariant();
  const auto layer = static_cast<uint16_t>(in_.Near(static_cast<uint32_t>(sequence->shard.first_layer)));
  SendQueries(*link, *sequence, layer, in_.Near(sequence->prompt_tokens), in_.Near(in_.Below(12)));
}

void FuzzedCacheRank::SendStep() {
  Link* const link = AnyLink();
  if (link == nullptr) return;
  DrawVariant();
  std::vector<wire::PlanRow> rows;
  std::vector<uint64_t> ids = store().sequence_ids();
  std::sort(ids.begin(), ids.end());
  for (const uint64_t id : ids) {
    const CachedSequence& sequence = *store().Find(id);
    if (sequence.channel != link->id && !in_.OneIn(16)) continue;
    const uint32_t position = in_.Near(sequence.kv.watermark());
    rows.push_back({.sequence_id = id,
                    .attach_epoch = in_.Near(sequence.attach_epoch),
                    .position = position,
                    .token_id = position,
                    .pool_slots = in_.Near(sequence.total_pool_slots),
                    .grant_generation = 1,
                    .flags = in_.Near(EverythingIsAttended(sequence, position) ? wire::kPlanAttendsEverything : 0),
                    .first_kv_head = static_cast<uint16_t>(in_.Near(sequence.shard.first_kv_head)),
                    .num_kv_heads = static_cast<uint16_t>(in_.Near(sequence.shard.num_kv_heads)),
                    .first_layer = static_cast<uint16_t>(in_.Near(sequence.shard.first_layer)),
                    .num_layers = static_cast<uint16_t>(in_.Near(sequence.shard.num_layers))});
  }
  if (rows.empty()) return;
  if (in_.OneIn(64)) rows.push_back(rows.front());
  const uint64_t plan = in_.OneIn(32) ? in_.Byte() : next_plan_++;
  std::vector<std::byte> payload;
  for (const wire::PlanRow& row : rows) AppendBytes(row, &payload);
  wire::FrameHeader header{};
  header.type = wire::FrameType::kStepPlan;
  header.plan = plan;
  header.row_count = in_.Near(static_cast<uint32_t>(rows.size()));
  Deliver(*link, header, payload);
  for (int layer = 0; layer < layout().num_layers; ++layer) {
    if (in_.OneIn(16)) continue;
    SendLayer(*link, plan, rows, layer);
    if (!in_.OneIn(4)) Work();
  }
}

void FuzzedCacheRank::SendLayer(Link& link, uint64_t plan, std::span<const wire::PlanRow> rows, int layer) {
  wire::FrameHeader header{};
  header.type = wire::FrameType::kLayer;
  header.plan = plan;
  header.layer_first = static_cast<uint16_t>(in_.Near(static_cast<uint32_t>(layer)));
  header.prediction_layer = static_cast<uint16_t>(in_.Near(static_cast<uint32_t>(layer) + 1));
  header.row_count = in_.Near(static_cast<uint32_t>(rows.size()));
  header.flags = wire::kSectionAppend | wire::kSectionQuery;
  if (header.prediction_layer < layout().num_layers) header.flags |= wire::kSectionPrediction;
  header.flags = in_.Near(header.flags);
  std::vector<std::byte> payload;
  const auto add_section = [&](uint32_t flag, int of_layer, const auto& add) {
    if ((header.flags & flag) == 0) return;
    payload.resize(wire::AlignUp(payload.size(), wire::kRowAlignment));
    for (const wire::PlanRow& row : rows) {
      if (of_layer >= row.first_layer && of_layer < row.first_layer + row.num_layers) add(row);
    }
  };
  const int heads_at_most = layout().num_kv_heads;  // what forged shards say more is missing
  add_section(wire::kSectionAppend, header.layer_first, [&](const wire::PlanRow& row) {
    for (int head = 0; head < std::min<int>(row.num_kv_heads, heads_at_most); ++head) {
      AppendRow(row.sequence_id, header.layer_first, row.first_kv_head + head, row.position, &payload);
    }
  });
  const auto add_queries = [&](const wire::PlanRow& row) {
    AppendFloats(
        size_t{std::min<uint32_t>(row.num_kv_heads, heads_at_most)} * layout().group_size() * layout().head_dim,
        &payload);
  };
  add_section(wire::kSectionQuery, header.layer_first, add_queries);
  add_section(wire::kSectionPrediction, header.prediction_layer, add_queries);
  Deliver(link, header, payload);
}

void FuzzedCacheRank::SendStepRows() {
  Link* const link = AnyLink();
  if (link == nullptr) return;
  DrawVariant();
  std::vector<wire::StepRowEntry> entries;
  for (const uint64_t id : store().sequence_ids()) {
    const CachedSequence& sequence = *store().Find(id);
    if (sequence.channel != link->id && !in_.OneIn(16)) continue;
    const uint32_t position = in_.Near(sequence.kv.watermark());
    entries.push_back({.sequence_id = id,
                       .attach_epoch = in_.Near(sequence.attach_epoch),
                       .position = position,
                       .token_id = position,
                       .first_kv_head = static_cast<uint16_t>(in_.Near(sequence.shard.first_kv_head)),
                       .num_kv_heads = static_cast<uint16_t>(in_.Near(sequence.shard.num_kv_heads)),
                       .first_layer = static_cast<uint16_t>(in_.Near(sequence.shard.first_layer)),
                       .num_layers = static_cast<uint16_t>(in_.Near(sequence.shard.num_layers)),
                       .reserved = 0});
  }
  std::vector<std::byte> payload;
  for (const wire::StepRowEntry& entry : entries) AppendBytes(entry, &payload);
  payload.resize(wire::AlignUp(payload.size(), wire::kRowAlignment));
  for (const wire::StepRowEntry& entry : entries) {
    for (int layer = 0; layer < std::min<int>(entry.num_layers, layout().num_layers); ++layer) {
      for (int head = 0; head < std::min<int>(entry.num_kv_heads, layout().num_kv_heads); ++head) {
        AppendRow(entry.sequence_id, entry.first_layer + layer, entry.first_kv_head + head, entry.position, &payload);
      }
    }
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kStepRows;
  header.row_count = in_.Near(static_cast<uint32_t>(entries.size()));
  Deliver(*link, header, payload);
}

void FuzzedCacheRank::SendPrefixQueries() {
  const CachedSequence* const sequence = AnySequence();
  if (sequence == nullptr) return;
  Link* const link = LinkOf(*sequence);
  if (link == nullptr) return;
  DrawVariant();
  wire::FrameHeader header{};
  header.type = wire::FrameType::kPrefixQueries;
  header.sequence_id = sequence->id;
  header.attach_epoch = in_.Near(sequence->attach_epoch);
  header.layer_first = static_cast<uint16_t>(in_.Near(static_cast<uint32_t>(sequence->shard.first_layer)));
  header.row_count = in_.Near(1 + in_.Below(16));
  header.flags = in_.Near(sequence->kv.watermark() / 64 * 64);
  header.apply_position = in_.Near(sequence->kv.watermark());
  std::vector<std::byte> payload;
  AppendFloats(size_t{std::min(header.row_count, 64u)} * sequence->layout.num_query_heads * layout().head_dim,
               &payload);
  Deliver(*link, header, payload);
}

void FuzzedCacheRank::SendTransferFailed() {
  const CachedSequence* const sequence = AnySequence();
  if (sequence == nullptr) return;
  Link* const link = LinkOf(*sequence);
  if (link == nullptr) return;
  wire::FrameHeader header{};
  header.type = wire::FrameType::kTransferFailed;
  header.sequence_id = sequence->id;
  header.attach_epoch = in_.Near(sequence->attach_epoch);
  header.plan = in_.Near(static_cast<uint32_t>(sequence->planned.plan));
  Deliver(*link, header, {});
}

// Any type, any fields, any payload; of a sequence that is there, so that it is looked at.
void FuzzedCacheRank::SendAnything() {
  Link* const link = AnyLink();
  if (link == nullptr) return;
  const CachedSequence* const sequence = AnySequence();
  variant_ = 255;  // zeros
  polluted_ = true;
  wire::FrameHeader header{};
  header.type = static_cast<wire::FrameType>(in_.Below(36));
  header.phase = static_cast<wire::Phase>(in_.Below(3));
  header.flags = in_.Near(0);
  header.plan = in_.Near(static_cast<uint32_t>(next_plan_) - 1);
  header.sequence_id = sequence == nullptr ? AnyId() : sequence->id;
  header.attach_epoch = in_.Near(sequence == nullptr ? 1 : sequence->attach_epoch);
  header.apply_position = in_.Near(sequence == nullptr ? 0 : sequence->kv.watermark());
  header.layer_first = static_cast<uint16_t>(in_.Near(0));
  header.prediction_layer = static_cast<uint16_t>(in_.Near(0));
  header.row_count = in_.Near(1);
  Deliver(*link, header, std::vector<std::byte>(in_.Byte() * size_t{16}));
}

}  // namespace winnow::fuzz
