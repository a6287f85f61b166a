#include "tests/cache_rank/fake_rank.h"

#include <gtest/gtest.h>

#include <cstring>

#include "common/base/check.h"

namespace winnow::test {
namespace {

void AppendBytes(std::vector<std::byte>& payload, const std::vector<float>& values) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  payload.insert(payload.end(), bytes, bytes + values.size() * sizeof(float));
}

}  // namespace

FakeRank::FakeRank(TestCluster* cluster, size_t window_bytes) : cluster_(cluster) {
  static uint64_t incarnation = 100;
  transport_ = NewInprocTransport({.incarnation = ++incarnation, .window_bytes = window_bytes, .ucx_tls = ""});
  transport_->SetHandler([this](Channel&, ReceivedFrame frame) {
    const wire::FrameType type = frame.header().type;
    const bool refill = type == wire::FrameType::kRefill || type == wire::FrameType::kRefillDone;
    if (refill && keeps_refills) return kept_refills.push_back(std::move(frame));
    OnFrame(frame);
  });
  channel_ = transport_->NewChannel().value();
  std::unique_ptr<Channel> theirs = cluster->transport->NewChannel().value();
  WINNOW_CHECK(channel_->Connect(theirs->LocalAddress()).ok());
  WINNOW_CHECK(theirs->Connect(channel_->LocalAddress()).ok());
  link_ = cluster->data_plane->OpenLink("inference-0", std::move(theirs), nullptr);
}

FakeRank::~FakeRank() {
  kept_refills.clear();
  channel_->Close();
  channel_.reset();
}

std::string FakeRank::Errors() const {
  std::string all;
  for (const std::string& error : errors) all += error + "; ";
  return all;
}

void FakeRank::Send(const wire::FrameHeader& header, const std::vector<std::byte>& payload) {
  absl::StatusOr<SendBuffer> buffer = channel_->Allocate(payload.size());
  WINNOW_CHECK(buffer.ok());
  if (!payload.empty()) std::memcpy(buffer->payload().data(), payload.data(), payload.size());
  WINNOW_CHECK(channel_->Post(header, *std::move(buffer)).ok());
}

FakeSequence::Row FakeRank::Row(FakeSequence& sequence, int layer, int head, uint32_t position) {
  FakeSequence::Row row = cluster_->TruthRow(sequence.seed, layer, head, position);
  FakeSequence::List& list = sequence.lists[layer * cluster_->shape.layout.num_kv_heads + head];
  list.position_of[{row[0], row[1]}] = position;
  return row;
}

FakeSequence* FakeRank::Prefill(uint64_t id, uint64_t seed, const SelectionSpec& spec, uint32_t prompt_tokens,
                                uint32_t max_positions) {
  const KvLayout& layout = cluster_->shape.layout;
  auto owned = std::make_unique<FakeSequence>();
  FakeSequence& sequence = *owned;
  sequence.max_positions = max_positions;
  sequence.id = id;
  sequence.seed = seed;
  sequence.spec = spec;
  sequence.group_size = layout.group_size();
  sequence.prompt_tokens = sequence.next_position = sequence.attach_position = prompt_tokens;
  sequence.lists.resize(layout.num_layers * layout.num_kv_heads);
  sequence.attach_epoch = cluster_->data_plane
                              ->OpenSequence(link_, {.sequence_id = id,
                                                     .spec = spec,
                                                     .max_positions = sequence.max_positions,
                                                     .prompt_tokens = prompt_tokens,
                                                     .sampling = {}})
                              .value()
                              .attach_epoch;
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (uint32_t first = 0; first < prompt_tokens; first += 50) {
      const uint32_t count = std::min(50u, prompt_tokens - first);
      std::vector<std::byte> payload;
      for (int head = 0; head < layout.num_kv_heads; ++head) {
        for (uint32_t p = first; p < first + count; ++p) {
          const FakeSequence::Row row = Row(sequence, layer, head, p);
          AppendBytes(payload, row);
          if (p + Ring(spec) >= prompt_tokens) sequence.lists[layer * layout.num_kv_heads + head].ring[p] = row;
        }
      }
      wire::FrameHeader header{};
      header.type = wire::FrameType::kAppendRange;
      header.sequence_id = id;
      header.attach_epoch = sequence.attach_epoch;
      header.apply_position = first;
      header.layer_first = static_cast<uint16_t>(layer);
      header.row_count = count;
      Send(header, payload);
      cluster_->transport->Progress();
    }
    const bool blends = spec.predictor == Predictor::kTemporal || spec.prefetch == Prefetch::kTemporal;
    const uint32_t queries = std::min(prompt_tokens, blends ? spec.window + 1 : 1);
    std::vector<std::byte> payload;
    for (uint32_t p = prompt_tokens - queries; p < prompt_tokens; ++p)
      AppendBytes(payload, cluster_->TruthQuery(seed, layer, p));
    wire::FrameHeader header{};
    header.type = wire::FrameType::kPromptQueries;
    header.sequence_id = id;
    header.attach_epoch = sequence.attach_epoch;
    header.apply_position = prompt_tokens - queries;
    header.layer_first = static_cast<uint16_t>(layer);
    header.row_count = queries;
    Send(header, payload);
  }
  return (sequences_[id] = std::move(owned)).get();
}

FakeSequence* FakeRank::Attach(const FakeSequence& old, uint32_t max_restart) {
  auto owned = std::make_unique<FakeSequence>();
  FakeSequence& sequence = *owned;
  sequence.id = old.id;
  sequence.seed = old.seed;
  sequence.spec = old.spec;
  sequence.group_size = old.group_size;
  sequence.prompt_tokens = old.prompt_tokens;
  sequence.max_positions = old.max_positions;
  sequence.lists.resize(old.lists.size());
  sequence.refill_done_at = kNoPosition;
  FakeSequence* result = (sequences_[old.id] = std::move(owned)).get();
  const DataPlane::Attached attached = cluster_->data_plane->AttachSequence(link_, old.id, max_restart).value();
  sequence.attach_epoch = attached.attach_epoch;
  sequence.next_position = sequence.attach_position = attached.restart_position;
  Expect(cluster_->PumpUntil(*this, [&] { return sequence.refill_done_at == attached.restart_position; }),
         "no RefillDone");
  return result;
}

FakeSequence* FakeRank::Fork(const FakeSequence& source, uint64_t id) {
  auto owned = std::make_unique<FakeSequence>(source);
  owned->id = id;
  owned->attach_epoch =
      cluster_->data_plane->ForkSequence(link_, source.id, id, source.max_positions).value().attach_epoch;
  for (FakeSequence::List& list : owned->lists) list.pool.clear();
  owned->attach_position = owned->next_position;
  owned->selections.clear();
  owned->deltas.clear();
  owned->masses.clear();
  owned->verifications.clear();
  return (sequences_[id] = std::move(owned)).get();
}

void FakeRank::SendPlan(const std::vector<FakeSequence*>& rows) {
  static uint64_t next_plan = 1;
  plan_ = next_plan++;
  rows_ = rows;
  missing_.clear();
  pending_.clear();
  const KvLayout& layout = cluster_->shape.layout;
  std::vector<std::byte> payload;
  for (size_t i = 0; i < rows.size(); ++i) {
    FakeSequence& sequence = *rows[i];
    const uint32_t position = sequence.next_position;
    uint32_t dense_lists = 0, pool_slots = 0;
    const size_t per_head = sequence.lists_per_head();
    std::vector<std::vector<uint32_t>> kept(sequence.lists.size() * per_head);
    for (size_t list = 0; list < sequence.lists.size(); ++list) {
      const int layer = static_cast<int>(list) / layout.num_kv_heads,
                head = static_cast<int>(list) % layout.num_kv_heads;
      pool_slots += sequence.Pool(list);
      // Where no delta comes the selection stays.
      const auto before = sequence.selections.find(position - 1);
      const bool awaited = NeedsDelta(sequence.spec, list, position, sequence.prompt_tokens, sequence.attach_position);
      missing_[{layer, static_cast<int>(i)}] += awaited;
      if (!awaited && before != sequence.selections.end()) {
        for (size_t i = list * per_head; i < (list + 1) * per_head; ++i) kept[i] = before->second[i];
      }
      if (!sequence.Everything(list, position)) continue;
      // Both sides know: pool index k holds sinks + k below the recent window.
      ++dense_lists;
      for (uint32_t p = sequence.spec.sink_tokens; p < sequence.Window(position); ++p) {
        sequence.lists[list].pool[p - sequence.spec.sink_tokens] = Row(sequence, layer, head, p);
      }
    }
    const bool everything = dense_lists == sequence.lists.size();
    if (!everything) {
      sequence.selections[position] = std::move(kept);
      sequence.masses[position].assign(sequence.lists.size(), NAN);
    }
    const wire::PlanRow row{.sequence_id = sequence.id,
                            .attach_epoch = sequence.attach_epoch,
                            .position = position,
                            .token_id = 1000 + position,
                            .pool_slots = pool_slots,
                            .grant_generation = 1,
                            .flags = everything ? wire::kPlanAttendsEverything : 0,
                            .first_kv_head = 0,
                            .num_kv_heads = static_cast<uint16_t>(cluster_->shape.layout.num_kv_heads),
                            .first_layer = 0,
                            .num_layers = static_cast<uint16_t>(cluster_->shape.layout.num_layers)};
    const auto* bytes = reinterpret_cast<const std::byte*>(&row);
    payload.insert(payload.end(), bytes, bytes + sizeof row);
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kStepPlan;
  header.plan = plan_;
  header.row_count = static_cast<uint32_t>(rows.size());
  Send(header, payload);
}

void FakeRank::SendLayer(int layer, bool with_queries) {
  const KvLayout& layout = cluster_->shape.layout;
  std::vector<std::byte> payload;
  for (FakeSequence* sequence : rows_) {
    const uint32_t position = sequence->next_position;
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      const FakeSequence::Row row = Row(*sequence, layer, head, position);
      std::map<uint32_t, FakeSequence::Row>& ring = sequence->lists[layer * layout.num_kv_heads + head].ring;
      ring[position] = row;
      if (position >= Ring(sequence->spec)) ring.erase(position - Ring(sequence->spec));
      AppendBytes(payload, row);
    }
  }
  payload.resize(wire::AlignUp(payload.size(), wire::kRowAlignment));
  for (FakeSequence* sequence : rows_) {
    if (with_queries) AppendBytes(payload, cluster_->TruthQuery(sequence->seed, layer, sequence->next_position));
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kLayer;
  header.flags = wire::kSectionAppend | (with_queries ? wire::kSectionQuery : 0);
  const int target = layer + static_cast<int>(rows_[0]->spec.lookahead);
  if (target < layout.num_layers && rows_[0]->spec.projection == Projection::kCacheRank) {
    header.flags |= wire::kSectionHidden;
    header.prediction_layer = static_cast<uint16_t>(target);
    payload.resize(wire::AlignUp(payload.size(), wire::kRowAlignment));
    for (FakeSequence* sequence : rows_) {
      AppendBytes(payload,
                  cluster_->TruthHidden(sequence->seed, layer, sequence->next_position, cluster_->hidden_size_));
    }
  } else if (target < layout.num_layers) {
    header.flags |= wire::kSectionPrediction;
    header.prediction_layer = static_cast<uint16_t>(target);
    payload.resize(wire::AlignUp(payload.size(), wire::kRowAlignment));
    for (FakeSequence* sequence : rows_) {
      AppendBytes(payload, cluster_->prediction_
                               ? cluster_->prediction_(sequence->seed, target, sequence->next_position)
                               : cluster_->TruthPrediction(sequence->seed, target, sequence->next_position));
    }
  }
  header.plan = plan_;
  header.layer_first = static_cast<uint16_t>(layer);
  header.row_count = static_cast<uint32_t>(rows_.size());
  Send(header, payload);
}

bool FakeRank::DeltasComplete(int layer) const {
  for (size_t row = 0; row < rows_.size(); ++row) {
    const auto missing = missing_.find({layer, static_cast<int>(row)});
    if (missing != missing_.end() && missing->second > 0) return false;
  }
  return true;
}

bool FakeRank::VerificationsComplete(int layer) const {
  const int heads = cluster_->shape.layout.num_kv_heads;
  for (const FakeSequence* sequence : rows_) {
    if (!WaitsForVerification(sequence->spec)) continue;
    const auto verifications = sequence->verifications.find(sequence->next_position);
    for (int head = 0; head < heads; ++head) {
      if (!IsSparse(sequence->spec, layer * heads + head, sequence->next_position, sequence->prompt_tokens)) continue;
      if (verifications == sequence->verifications.end() || verifications->second.count(layer * heads + head) == 0)
        return false;
    }
  }
  return true;
}

void FakeRank::FinishPlan() {
  for (FakeSequence* sequence : rows_) ++sequence->next_position;
  rows_.clear();
  missing_.clear();
}

bool FakeRank::Decode(const std::vector<FakeSequence*>& rows, int layers) {
  SendPlan(rows);
  const int end = layers < 0 ? cluster_->shape.layout.num_layers : layers;
  for (int layer = 0; layer < end; ++layer) {
    SendLayer(layer);
    if (!cluster_->PumpUntil(*this, [&] { return DeltasComplete(layer) && VerificationsComplete(layer); }))
      return false;
  }
  if (layers >= 0) return true;
  const auto stored = [&] {
    for (FakeSequence* sequence : rows) {
      if (watermarks[sequence->id] <= sequence->next_position) return false;
    }
    return true;
  };
  if (!cluster_->PumpUntil(*this, stored)) return false;
  FinishPlan();
  return true;
}

}  // namespace winnow::test
