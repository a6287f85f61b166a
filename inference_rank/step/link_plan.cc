#include "inference_rank/step/link_plan.h"

#include <cstddef>

#include "inference_rank/memory/working_set.h"
#include "transport/wire/wire.h"

namespace winnow {

absl::StatusOr<int> LinkPlan::RowOf(uint32_t plan_row, int layer, int kv_head) const {
  if (plan_row < members.size()) {
    const Member& member = members[plan_row];
    if (member.shard.HasLayer(layer) && member.shard.HasHead(kv_head)) return member.row;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("plan row ", plan_row, ", layer ", layer, ", kv head ", kv_head, " is not of this cache rank"));
}

LinkPlan& LinkPlans::Of(CacheLink* link) {
  for (size_t i = 0; i < num_plans_; ++i) {
    if (plans_[i].link == link) return plans_[i];
  }
  if (num_plans_ == plans_.size()) plans_.emplace_back();
  LinkPlan& plan = plans_[num_plans_++];
  plan.link = link;
  plan.members.clear();
  plan.needs_queries = plan.needs_index_queries = plan.needs_predictions = plan.needs_hidden = false;
  return plan;
}

const LinkPlan* LinkPlans::Find(const CacheLink& link) const {
  for (const LinkPlan& plan : all()) {
    if (plan.link == &link) return &plan;
  }
  return nullptr;
}

absl::Status PlanSender::PostPlan(uint64_t plan, const LinkPlan& of, std::span<const FrameStepRow> rows) {
  const size_t count = of.members.size();
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer,
                          AwaitSendBuffer(transport_, *of.link, count * sizeof(wire::PlanRow), waits_));
  auto* plan_rows = reinterpret_cast<wire::PlanRow*>(buffer.payload().data());
  for (size_t i = 0; i < count; ++i) {
    const KvShard& shard = of.members[i].shard;
    const FrameStepRow& row = rows[of.members[i].row];
    plan_rows[i] = {.sequence_id = row.sequence->sequence_id,
                    .attach_epoch = row.sequence->FindShard(*of.link)->attach_epoch,
                    .position = row.position,
                    .token_id = row.token_id,
                    .pool_slots = row.sequence->working_set->pool_slots(shard),
                    .grant_generation = 1,
                    .flags = (row.dense_lists == layout_.num_lists() ? wire::kPlanAttendsEverything : 0) |
                             (row.sequence->trace.has_value() ? wire::kPlanTellsPositions : 0),
                    .first_kv_head = static_cast<uint16_t>(shard.first_kv_head),
                    .num_kv_heads = static_cast<uint16_t>(shard.num_kv_heads),
                    .first_layer = static_cast<uint16_t>(shard.first_layer),
                    .num_layers = static_cast<uint16_t>(shard.num_layers)};
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kStepPlan;
  header.plan = plan;
  header.row_count = static_cast<uint32_t>(count);
  return of.link->channel()->Post(header, std::move(buffer));
}

absl::Status PlanSender::PostWithdrawal(uint64_t plan, CacheLink& link, const Sequence& sequence) {
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, AwaitSendBuffer(transport_, link, 0, waits_));
  wire::FrameHeader header{};
  header.type = wire::FrameType::kTransferFailed;
  header.plan = plan;
  header.sequence_id = sequence.sequence_id;
  header.attach_epoch = sequence.FindShard(link)->attach_epoch;
  return link.channel()->Post(header, std::move(buffer));
}

absl::Status PlanSender::PostLayer(uint64_t plan, const LinkPlan& of, const DecodeLayerOutput& output,
                                   int hidden_target) {
  const size_t row_bytes = layout_.row_bytes();
  const size_t query_heads = layout_.num_query_heads, head_bytes = layout_.head_dim * sizeof(float);
  wire::FrameHeader header{};
  header.type = wire::FrameType::kLayer;
  header.plan = plan;
  header.layer_first = static_cast<uint16_t>(output.layer);
  header.row_count = static_cast<uint32_t>(of.members.size());
  sections_.Clear();
  // Of the rows whose shard has the section's layer.
  const auto add = [&](uint32_t flag, int layer, auto part_of) {
    sections_.BeginSection();
    for (const LinkPlan::Member& member : of.members) {
      if (!member.shard.HasLayer(layer)) continue;
      const auto [from, bytes] = part_of(member);
      sections_.Add(from, bytes);
      header.flags |= flag;
    }
  };
  const auto queries_of = [&](const float* queries) {
    return [&, first = reinterpret_cast<const std::byte*>(queries)](const LinkPlan::Member& member) {
      const size_t first_head = static_cast<size_t>(member.shard.first_kv_head) * layout_.group_size();
      return std::pair(first + (member.row * query_heads + first_head) * head_bytes,
                       static_cast<size_t>(member.shard.num_kv_heads) * layout_.group_size() * head_bytes);
    };
  };
  add(wire::kSectionAppend, output.layer, [&](const LinkPlan::Member& member) {
    const size_t first = static_cast<size_t>(member.row) * layout_.num_kv_heads + member.shard.first_kv_head;
    return std::pair(output.kv_rows + first * row_bytes, member.shard.num_kv_heads * row_bytes);
  });
  if (of.needs_queries) add(wire::kSectionQuery, output.layer, queries_of(output.q_pre_rope));
  if (of.needs_predictions && output.prediction != nullptr) {
    header.prediction_layer = static_cast<uint16_t>(output.prediction_layer);
    add(wire::kSectionPrediction, output.prediction_layer, queries_of(output.prediction));
  }
  if (of.needs_hidden && hidden_target < layout_.num_layers) {
    header.prediction_layer = static_cast<uint16_t>(hidden_target);
    add(wire::kSectionHidden, header.prediction_layer, [&](const LinkPlan::Member& member) {
      return std::pair(output.hidden + static_cast<size_t>(member.row) * output.hidden_size,
                       output.hidden_size * sizeof(float));
    });
  }
  if (of.needs_index_queries) {
    const size_t floats = layout_.index_query_floats();
    add(wire::kSectionIndexQuery, output.layer, [&](const LinkPlan::Member& member) {
      const float* const first = output.index_queries + static_cast<size_t>(member.row) * floats;
      return std::pair(reinterpret_cast<const std::byte*>(first), floats * sizeof(float));
    });
  }
  if (header.flags == 0) return absl::OkStatus();  // nothing of the layer is there
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, AwaitSendBuffer(transport_, *of.link, sections_.bytes(), waits_));
  sections_.WriteTo(buffer.payload());
  return of.link->channel()->Post(header, std::move(buffer));
}

}  // namespace winnow
