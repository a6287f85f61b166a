#include "model/weights/weight_synthesis.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "common/base/status.h"
#include "kernels/device/params/expert_codes.h"

namespace winnow {
namespace {

uint64_t Seed(uint64_t seed, uint64_t number) {
  return seed * 0x9E3779B97F4A7C15 + number;
}

}  // namespace

absl::Status WeightSynthesis::Fill(DeviceWeights& weights) {
  const ModelConfig& config = weights.config_;
  WINNOW_ASSIGN_OR_RETURN(staging_, NewStaging(device_, weights));
  FillVectors(weights);
  uint64_t number = 0;
  for (DeviceLayerWeights& layer : weights.layers_) {
    for (const device::DeviceMatrix* matrix : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      FillMatrix(*matrix, ++number);
    }
    if (config.latent) FillLatents(config, layer.latent, number);
    if (layer.is_sparse()) FillExperts(layer.experts, number);
  }
  if (!weights.ties_tables()) FillMatrix(weights.lm_head_, ++number);
  if (weights.embedding_ != nullptr) {
    const size_t elements = static_cast<size_t>(config.vocab_size) * config.hidden_size;
    table_.elementwise->fill_normal(stream_, weights.embedding_, elements, Seed(seed_, ++number),
                                    1 / std::sqrt(static_cast<float>(config.hidden_size)));
  }
  return device_.Synchronize(stream_);
}

void WeightSynthesis::FillVectors(const DeviceWeights& weights) {
  vectors_.assign(weights.vector_bytes_ / sizeof(float), 1.0f);
  const auto* begin = static_cast<const float*>(weights.memory_->data());
  const auto clear = [&](const float* vector, size_t count) {
    if (vector != nullptr) std::fill_n(vectors_.begin() + (vector - begin), count, 0);
  };
  for (const DeviceLayerWeights& layer : weights.layers_) {
    const device::ExpertMatrices& experts = layer.experts;
    clear(layer.qkv_bias, layer.qkv.out_features);
    clear(layer.sinks, weights.config_.num_query_heads);
    clear(layer.o_bias, weights.config_.hidden_size);
    clear(layer.latent.index_norm_bias, weights.config_.latent ? weights.config_.latent->indexer.head_dim : 0);
    clear(experts.router_bias, experts.num_logits());
    clear(experts.correction, experts.num_experts);
    clear(experts.gate_up_bias, size_t{2} * experts.num_all() * experts.intermediate_size);
    clear(experts.down_bias, static_cast<size_t>(experts.num_all()) * experts.hidden_size);
    if (layer.is_sparse()) FillRouter(layer.experts, vectors_.begin() + (layer.experts.router - begin));
  }
  device_.CopyAsync(weights.memory_->data(), vectors_.data(), weights.vector_bytes_, stream_);
}

void WeightSynthesis::FillRouter(const device::ExpertMatrices& experts, std::vector<float>::iterator to) {
  std::normal_distribution<float> normal(0, 2 / std::sqrt(static_cast<float>(experts.hidden_size)));
  std::generate_n(to, static_cast<size_t>(experts.num_logits()) * experts.hidden_size,
                  [&] { return normal(router_random_); });
}

// Values of random codes have a deviation of 2.9, and all scales are one that brings them next to what bf16 have.
void WeightSynthesis::FillCodes(const device::ExpertMatrices& experts) {
  if (codes_.empty()) {
    codes_.resize(size_t{1} << 22);
    std::generate(codes_.begin(), codes_.end(), std::ref(code_random_));
  }
  const size_t elements = static_cast<size_t>(experts.num_all()) * experts.intermediate_size * experts.hidden_size;
  const auto fill = [&](const void* matrices, const uint8_t* scales, size_t count, int in_features) {
    constexpr size_t kOffset = 4096;  // so that matrices differ, words from one to the next
    for (size_t done = 0, part = 0; done < count / 2; done += part) {
      code_offset_ = (code_offset_ + kOffset) % (codes_.size() / 2);
      part = std::min(count / 2 - done, codes_.size() / 2 * sizeof(uint32_t));
      device_.CopyAsync(static_cast<std::byte*>(const_cast<void*>(matrices)) + done, codes_.data() + code_offset_, part,
                        stream_);
    }
    const double scale = std::log2(1 / (2.9 * std::sqrt(static_cast<double>(in_features))));
    device_.FillAsync(const_cast<uint8_t*>(scales), static_cast<uint8_t>(127 + std::lround(scale)),
                      count / device::kExpertBlock, stream_);
  };
  fill(experts.gate_up, experts.gate_up_scales, 2 * elements, experts.hidden_size);
  fill(experts.down, experts.down_scales, elements, experts.intermediate_size);
}

void WeightSynthesis::FillLatents(const ModelConfig& config, const DeviceLatentWeights& latent, uint64_t& number) {
  const LatentConfig& of = *config.latent;
  FillMatrix(latent.query_up, ++number);
  const auto fill = [&](const void* matrices, int width, int in_features) {
    const size_t elements = static_cast<size_t>(config.num_query_heads) * of.shape.rank * width;
    table_.elementwise->fill_normal(stream_, const_cast<void*>(matrices), elements, Seed(shard_seed_, ++number),
                                    1 / std::sqrt(static_cast<float>(in_features)));
  };
  fill(latent.key_up, of.nope_dim, of.nope_dim);
  fill(latent.value_up, of.value_dim, of.shape.rank);
}

void WeightSynthesis::FillExperts(const device::ExpertMatrices& experts, uint64_t& number) {
  if (experts.mxfp4) return FillCodes(experts);
  const size_t elements = static_cast<size_t>(experts.num_all()) * experts.intermediate_size * experts.hidden_size;
  const auto fill = [&](const void* matrices, size_t count, int in_features) {
    table_.elementwise->fill_normal(stream_, const_cast<void*>(matrices), count, Seed(shard_seed_, ++number),
                                    1 / std::sqrt(static_cast<float>(in_features)));
  };
  fill(experts.gate_up, 2 * elements, experts.hidden_size);
  fill(experts.down, elements, experts.intermediate_size);
}

void WeightSynthesis::FillMatrix(const device::DeviceMatrix& matrix, uint64_t number) {
  if (matrix.data == nullptr) return;
  const size_t elements = static_cast<size_t>(matrix.out_features) * matrix.in_features;
  const float stddev = 1 / std::sqrt(static_cast<float>(matrix.in_features));
  void* const row_major = StagingOf(matrix, staging_.get());
  table_.elementwise->fill_normal(stream_, row_major, elements, Seed(shard_seed_, number), stddev);
  table_.matmul->pack(stream_, row_major, matrix);
}

}  // namespace winnow
