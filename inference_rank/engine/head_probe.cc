#include "inference_rank/engine/head_probe.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace winnow {

QueryNeeds NeedsOf(std::span<const float> softmax, uint32_t sink_tokens, uint32_t recent_tokens) {
  const auto length = static_cast<uint32_t>(softmax.size());
  const uint32_t window = std::min(RecentStart(length - 1, recent_tokens, sink_tokens, kBlockTokens), length);
  const uint32_t sinks = std::min(sink_tokens, window);
  QueryNeeds needs;
  for (uint32_t j = 0; j < sinks; ++j) needs.window_mass += softmax[j];
  for (uint32_t j = window; j < length; ++j) needs.window_mass += softmax[j];
  std::vector<float> middle(softmax.begin() + sinks, softmax.begin() + window);
  std::sort(middle.begin(), middle.end(), std::greater<>());
  double mass = needs.window_mass;
  size_t taken = 0, next_mass = 0, next_rows = 0;
  while (true) {
    while (next_mass < needs.tokens_needed.size() && mass >= HeadProfile::kMasses[next_mass]) {
      needs.tokens_needed[next_mass++] = static_cast<double>(taken);
    }
    while (next_rows < HeadProfile::kRows.size() && HeadProfile::kRows[next_rows] == taken) {
      needs.mass_with_rows[next_rows++] = mass;
    }
    if (taken == middle.size()) break;
    mass += middle[taken++];
  }
  // Short contexts, and masses that rounding keeps from their sum.
  for (; next_mass < needs.tokens_needed.size(); ++next_mass)
    needs.tokens_needed[next_mass] = static_cast<double>(taken);
  for (; next_rows < HeadProfile::kRows.size(); ++next_rows) needs.mass_with_rows[next_rows] = mass;
  return needs;
}

HeadProbe::HeadProbe(const Options& options, const KvLayout& layout, const Forward& forward, const KernelTable& kernels,
                     Executor& executor)
    : options_(options),
      layout_(layout),
      forward_(forward),
      kernels_(kernels),
      executor_(executor),
      tile_bytes_(kBlockTokens * layout.row_bytes() / 2),
      workers_(kernels.num_workers(executor)),
      sums_(layout.num_lists()),
      window_masses_(layout.num_lists()) {}

std::vector<uint32_t> HeadProbe::SampledPositions(const Options& options, uint32_t tokens, uint32_t measured_from) {
  std::vector<uint32_t> positions;
  const uint32_t first = std::max(measured_from, options.sink_tokens + options.recent_tokens + kBlockTokens);
  if (first >= tokens || options.queries_per_text == 0) return positions;
  const uint64_t span = tokens - first, count = std::min<uint64_t>(span, options.queries_per_text);
  for (uint64_t i = 1; i <= count; ++i) positions.push_back(first + static_cast<uint32_t>(i * span / count) - 1);
  return positions;
}

absl::Status HeadProbe::BeginText(uint32_t tokens, uint32_t measured_from) {
  arena_.reset();
  WINNOW_ASSIGN_OR_RETURN(PrefillArena arena, PrefillArena::Create(layout_, tokens));
  arena_.emplace(std::move(arena));
  blocks_ = (tokens + kBlockTokens - 1) / kBlockTokens;
  tiles_.assign(layout_.num_lists() * blocks_ * tile_bytes_, std::byte{0});
  tile_list_.resize(layout_.num_kv_heads * blocks_);
  sampled_ = SampledPositions(options_, tokens, measured_from);
  queries_ += sampled_.size();
  return absl::OkStatus();
}

void HeadProbe::BeginChunk(uint32_t first, uint32_t count) {
  first_ = first;
  count_ = count;
  positions_.clear();
  for (const uint32_t position : sampled_) {
    if (position >= first && position < first + count) positions_.push_back(position);
  }
  needs_.resize(positions_.size() * layout_.num_kv_heads);
}

PrefillKv::Rows HeadProbe::Publish(int layer, const std::byte* kv_rows, const float* q_pre_rope) {
  const size_t row_bytes = layout_.row_bytes();
  for (int head = 0; head < layout_.num_kv_heads; ++head) {
    const size_t list = layout_.list(layer, head);
    for (size_t block = 0; block < blocks_; ++block) {
      tile_list_[head * blocks_ + block] = tiles_.data() + (list * blocks_ + block) * tile_bytes_;
    }
    for (uint32_t i = 0; i < count_; ++i) {
      const uint32_t position = first_ + i;
      std::byte* row = arena_->row(layer, head, position);
      std::memcpy(row, kv_rows + (static_cast<size_t>(i) * layout_.num_kv_heads + head) * row_bytes, row_bytes);
      kernels_.index_keys({.rows = row,
                           .num_rows = 1,
                           .first_row = static_cast<int>(position % kBlockTokens),
                           .head_dim = layout_.head_dim,
                           .dtype = layout_.dtype,
                           .tile = tiles_.data() + (list * blocks_ + position / kBlockTokens) * tile_bytes_});
    }
  }
  layer_ = layer;
  q_pre_rope_ = q_pre_rope;
  kernels_.parallel_for(
      executor_, static_cast<int>(needs_.size()),
      [](void* opaque, int item, int worker) {
        auto* probe = static_cast<HeadProbe*>(opaque);
        probe->Measure(item, probe->workers_[worker]);
      },
      this);
  for (size_t item = 0; item < needs_.size(); ++item) {
    const size_t list = layout_.list(layer, item % layout_.num_kv_heads);
    const QueryNeeds& needs = needs_[item];
    QueryNeeds& sum = sums_[list];
    sum.window_mass += needs.window_mass;
    for (size_t i = 0; i < sum.tokens_needed.size(); ++i) sum.tokens_needed[i] += needs.tokens_needed[i];
    for (size_t i = 0; i < sum.mass_with_rows.size(); ++i) sum.mass_with_rows[i] += needs.mass_with_rows[i];
    window_masses_[list].Add(needs.window_mass);
  }
  return {.kv = arena_->row(layer, 0, 0), .head_stride = arena_->prompt_tokens()};
}

void HeadProbe::Measure(size_t item, Worker& worker) {
  const uint32_t position = positions_[item / layout_.num_kv_heads];
  const size_t head = item % layout_.num_kv_heads;
  const int group = layout_.group_size();
  const size_t first_query = (static_cast<size_t>(position - first_) * layout_.num_query_heads + head * group) *
                             static_cast<size_t>(layout_.head_dim);
  const int num_keys = static_cast<int>(position) + 1;
  const int64_t stride = static_cast<int64_t>(blocks_) * kBlockTokens;
  const size_t runs = group * SoftmaxRuns(num_keys);
  worker.queries.resize(static_cast<size_t>(group) * layout_.head_dim);
  worker.weights.resize(group * stride);
  worker.importance.resize(num_keys);
  worker.run_scales.resize(runs);
  worker.run_sums.resize(runs);
  worker.lse.resize(group);
  kernels_.rotate({.q_pre_rope = q_pre_rope_ + first_query,
                   .num_rows = 1,
                   .num_heads = group,
                   .head_dim = layout_.head_dim,
                   .positions = &position,
                   .rope_inv_freq = forward_.rope().inv_freq.data(),
                   .rope_attention_factor = forward_.rope().attention_factor,
                   .q = worker.queries.data()});
  kernels_.key_softmax({.score = {.tiles = tile_list_.data() + head * blocks_,
                                  .num_keys = num_keys,
                                  .head_dim = layout_.head_dim,
                                  .dtype = layout_.dtype,
                                  .queries = worker.queries.data(),
                                  .num_queries = group,
                                  .scale = forward_.attention_scale(),
                                  .score_cap = forward_.attention_softcap(),
                                  .scores = worker.weights.data(),
                                  .scores_stride = stride},
                        .run_scales = worker.run_scales.data(),
                        .lse = worker.lse.data(),
                        .scratch = worker.run_sums.data()});
  kernels_.softmax_sum({.weights = worker.weights.data(),
                        .weights_stride = stride,
                        .run_scales = worker.run_scales.data(),
                        .num_queries = group,
                        .num_keys = num_keys,
                        .first = 0,
                        .last = num_keys,
                        .importance = worker.importance.data()});
  for (float& share : worker.importance) share /= static_cast<float>(group);
  needs_[item] = NeedsOf(worker.importance, options_.sink_tokens, options_.recent_tokens);
}

std::vector<HeadProfile::Head> HeadProbe::Heads(double streaming_below) const {
  std::vector<HeadProfile::Head> heads(sums_.size());
  const double count = static_cast<double>(std::max<uint64_t>(queries_, 1));
  const auto mean_mass = [&](double sum) { return std::clamp(sum / count, 0.0, 1.0); };
  for (size_t list = 0; list < sums_.size(); ++list) {
    HeadProfile::Head& head = heads[list];
    const QueryNeeds& sum = sums_[list];
    head.window_mass = mean_mass(sum.window_mass);
    head.window_mass_p5 = window_masses_[list].percentile(0.05);
    head.streaming = 1 - head.window_mass < streaming_below;
    for (size_t i = 0; i < head.tokens_needed.size(); ++i) head.tokens_needed[i] = sum.tokens_needed[i] / count;
    for (size_t i = 0; i < head.mass_with_rows.size(); ++i) head.mass_with_rows[i] = mean_mass(sum.mass_with_rows[i]);
  }
  return heads;
}

}  // namespace winnow
