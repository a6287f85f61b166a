// What a GPU holds of a checkpoint, seen on a GPU made of host memory.
#include "model/weights/device_weights.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/host_gpu/host_device.h"
#include "tests/support/host_gpu/host_table.h"
#include "tests/support/quantized_checkpoint.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

class QuantizedUploadTest : public testing::TestWithParam<QuantizedForm> {};

// Whole and in halves, of which one cuts rows and the other columns.
TEST_P(QuantizedUploadTest, HoldsTheDequantisedWeights) {
  TinyModel model = QuantizableModel();
  model.head_dim = 64;
  const TempDir quantized, plain;
  WriteQuantizedCheckpoint(model, GetParam(), quantized.path(), plain.path());
  const cuda::CudaTable& table = test::HostGpuTable();
  const auto device = test::OpenHostDevice(0);
  ASSERT_THAT(device, IsOkStatus());
  for (const WeightShard shard : {WeightShard{0, 1}, WeightShard{1, 2}}) {
    const auto load = [&](const TempDir& dir) {
      return DeviceWeights::Load(table, **device, *Checkpoint::Open(dir.path()).value(),
                                 LoadModelConfig(dir.path()).value(), {.shard = shard});
    };
    const auto weights = load(quantized);
    ASSERT_THAT(weights, IsOkStatus());
    const auto expected = load(plain);
    ASSERT_THAT(expected, IsOkStatus());
    for (int i = 0; i < model.num_layers; ++i) {
      const DeviceLayerWeights& layer = (*weights)->layer(i);
      const DeviceLayerWeights& other = (*expected)->layer(i);
      const std::pair<cuda::DeviceMatrix, cuda::DeviceMatrix> matrices[] = {
          {layer.qkv, other.qkv}, {layer.o, other.o}, {layer.gate_up, other.gate_up}, {layer.down, other.down}};
      for (const auto& [matrix, reference] : matrices) {
        ASSERT_EQ(matrix.out_features, reference.out_features);
        const size_t bytes = table.matmul->packed_bytes(matrix.out_features, matrix.in_features, matrix.dtype);
        ASSERT_EQ(std::memcmp(matrix.data, reference.data, bytes), 0) << "layer " << i << " shard " << shard.index;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, QuantizedUploadTest, testing::ValuesIn(QuantizedForms()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace winnow
