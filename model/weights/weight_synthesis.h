#pragma once
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "model/weights/device_weights.h"

namespace winnow {

// Fills carved device memory with values from a seed: normal ones that keep the size of activations, rounded to the
// form of each matrix, and random codes for experts in MXFP4.
class WeightSynthesis {
 public:
  // A shard of a random matrix is another random matrix; what all shards hold whole is the same in all.
  WeightSynthesis(const device::DeviceTable& table, device::Device& device, uint64_t seed, WeightShard shard)
      : table_(table),
        device_(device),
        seed_(seed),
        shard_seed_(seed + (static_cast<uint64_t>(shard.index) << 32)),
        stream_(device.NewStream()) {}
  // Waits for the device.
  absl::Status Fill(DeviceWeights& weights);

 private:
  // Norms are ones, biases and sinks zeros, routers random. The host's copy lives until the stream is waited for.
  void FillVectors(const DeviceWeights& weights);
  // Logits of the size of two: some experts of a row weigh much more than others, as in trained ones.
  void FillRouter(const device::ExpertMatrices& experts, std::vector<float>::iterator to);
  // Projections to and from latents, of all heads at once.
  void FillLatents(const ModelConfig& config, const DeviceLatentWeights& latent, uint64_t& number);
  // All experts at once.
  void FillExperts(const device::ExpertMatrices& experts, uint64_t& number);
  void FillCodes(const device::ExpertMatrices& experts);
  // Inputs of the size of one give outputs of the size of one.
  void FillMatrix(const device::DeviceMatrix& matrix, uint64_t number);

  const device::DeviceTable& table_;
  device::Device& device_;
  const uint64_t seed_, shard_seed_;
  const device::Stream stream_;
  std::unique_ptr<device::DeviceMemory> staging_;
  std::vector<float> vectors_;
  std::mt19937 router_random_{static_cast<uint32_t>(seed_)}, code_random_{static_cast<uint32_t>(seed_ + 1)};
  std::vector<uint32_t> codes_;  // of which matrices take parts
  size_t code_offset_ = 0;
};

}  // namespace winnow
