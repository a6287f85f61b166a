#include "inference_rank/backend/sharded_local_step.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"

namespace winnow {
namespace {

// A whole is [outer][shards][inner] elements, and each shard has [outer][inner] of it, `inner` being its heads with all
// that belongs to each.
template <typename T>
void TakePart(std::span<const T> whole, size_t inner, size_t shard, size_t num_shards, std::vector<T>& part) {
  part.clear();
  for (size_t first = shard * inner; first < whole.size(); first += num_shards * inner) {
    part.insert(part.end(), whole.begin() + first, whole.begin() + first + inner);
  }
}
template <typename T>
void PutPart(const T* part, size_t inner, size_t shard, size_t num_shards, std::span<T> whole) {
  for (size_t first = shard * inner; first < whole.size(); first += num_shards * inner, part += inner) {
    std::memcpy(whole.data() + first, part, inner * sizeof(T));
  }
}

}  // namespace

ShardedLocalStep::ShardedLocalStep(std::vector<std::unique_ptr<DeviceLocalStep>> shards, const KvLayout& layout,
                                   ShardedForward& forward)
    : shards_(std::move(shards)), layout_(layout), forward_(forward) {}

absl::StatusOr<std::unique_ptr<ShardedLocalStep>> ShardedLocalStep::Create(
    std::vector<std::unique_ptr<DeviceLocalStep>> shards, const KvLayout& layout, ShardedForward& forward) {
  std::unique_ptr<ShardedLocalStep> step(new ShardedLocalStep(std::move(shards), layout, forward));
  WINNOW_RETURN_IF_ERROR(step->Join());
  for (std::vector<std::byte>& rows : step->kv_rows_) {
    rows.resize(step->max_rows() * layout.num_lists() * layout.row_bytes());
  }
  return step;
}

// GPUs that wait for each other need all their graphs before the first is launched.
absl::Status ShardedLocalStep::Join() {
  TensorParallelGroup group{.num_ranks = num_shards()};
  for (int shard = 0; shard < num_shards(); ++shard) group.boxes[shard] = shards_[shard]->box();
  for (group.rank = 0; group.rank < num_shards(); ++group.rank) {
    WINNOW_RETURN_IF_ERROR(shards_[group.rank]->Join(group));
  }
  WINNOW_RETURN_IF_ERROR(RunTogether(&DeviceLocalStep::WarmUp));
  return RunTogether(&DeviceLocalStep::Synchronize);
}

absl::Status ShardedLocalStep::RunTogether(absl::Status (DeviceLocalStep::*work)()) {
  std::array<absl::Status, device::kMaxTensorParallel> of_gpus;
  forward_.RunBeside([&](int gpu) { of_gpus[gpu] = (*shards_[gpu].*work)(); });
  for (const absl::Status& status : of_gpus) WINNOW_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::Status ShardedLocalStep::Serves(const SelectionSpec& spec) const {
  if (!spec.head_budgets.empty()) {
    return absl::FailedPreconditionError("not selected in place: budgets by head on several GPUs");
  }
  return first().Serves(spec);
}

absl::Status ShardedLocalStep::SetRow(int row, const StepSequence& sequence) {
  WINNOW_CHECK(sequence.staging.empty());  // rows in host memory are for one GPU
  const size_t heads = layout_.num_kv_heads / num_shards(), queries = layout_.num_query_heads / num_shards();
  std::vector<uint32_t> pages;
  std::vector<float> past_queries;
  for (int shard = 0; shard < num_shards(); ++shard) {
    TakePart(sequence.pages, heads * pages_per_list(), shard, num_shards(), pages);
    TakePart(sequence.past_queries, queries * layout_.head_dim, shard, num_shards(), past_queries);
    StepSequence part = sequence;
    part.pages = pages;
    part.past_queries = past_queries;
    absl::Status taken = shards_[shard]->SetRow(row, part);
    if (taken.ok()) continue;
    for (int before = 0; before < shard; ++before) shards_[before]->ClearRow(row);
    return taken;
  }
  return absl::OkStatus();
}

std::vector<float> ShardedLocalStep::PastQueries(int row, uint32_t end) {
  std::vector<float> queries;
  for (int shard = 0; shard < num_shards(); ++shard) {
    const std::vector<float> part = shards_[shard]->PastQueries(row, end);
    if (part.empty()) return {};
    queries.resize(part.size() * num_shards());
    PutPart(part.data(), static_cast<size_t>(layout_.num_query_heads) / num_shards() * layout_.head_dim, shard,
            num_shards(), std::span(queries));
  }
  return queries;
}

void ShardedLocalStep::ClearRow(int row) {
  for (const auto& shard : shards_) shard->ClearRow(row);
}

void ShardedLocalStep::Plan(std::span<const StepRow> rows) {
  for (const auto& shard : shards_) shard->Plan(rows);
}

absl::Status ShardedLocalStep::Launch() {
  for (const auto& shard : shards_) WINNOW_RETURN_IF_ERROR(shard->Prepare());
  return RunTogether(&DeviceLocalStep::LaunchPrepared);
}

absl::Status ShardedLocalStep::Draw(std::span<const int> masked_rows) {
  for (int shard = 0; shard < num_shards(); ++shard) {
    for (const int row : masked_rows) {
      if (shard > 0) std::ranges::copy(first().token_mask(row), shards_[shard]->token_mask(row).begin());
    }
    WINNOW_RETURN_IF_ERROR(shards_[shard]->Draw(masked_rows));
  }
  return absl::OkStatus();
}

bool ShardedLocalStep::HasEnded() {
  return std::ranges::all_of(shards_, [](const auto& shard) { return shard->HasEnded(); });
}

absl::Status ShardedLocalStep::Complete() {
  ++num_completed_;
  absl::Status status;
  for (const auto& shard : shards_) status.Update(shard->Complete());
  return status;
}

const std::byte* ShardedLocalStep::kv_rows(int row) const {
  const size_t row_bytes = layout_.num_lists() * layout_.row_bytes();
  std::vector<std::byte>& rows = kv_rows_[num_completed_ % kv_rows_.size()];
  const std::span<std::byte> whole(rows.data() + row * row_bytes, row_bytes);
  for (int shard = 0; shard < num_shards(); ++shard) {
    PutPart(shards_[shard]->kv_rows(row), layout_.num_kv_heads / num_shards() * layout_.row_bytes(), shard,
            num_shards(), whole);
  }
  return whole.data();
}

StepSelection ShardedLocalStep::selection(int row) const {
  StepSelection sum;
  captured_masses_.resize(layout_.num_lists());
  for (int shard = 0; shard < num_shards(); ++shard) {
    const StepSelection part = shards_[shard]->selection(row);
    if (part.captured_masses.empty()) return {};
    PutPart(part.captured_masses.data(), static_cast<size_t>(layout_.num_kv_heads / num_shards()), shard, num_shards(),
            std::span(captured_masses_));
    sum.selected_rows += part.selected_rows;
    sum.fetched_rows += part.fetched_rows;
  }
  sum.captured_masses = captured_masses_;
  return sum;
}

}  // namespace winnow
