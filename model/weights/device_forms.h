#pragma once
#include <vector>

#include "common/base/dtype.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"
#include "kernels/device/params/matmul.h"
#include "model/weights/weight_pieces.h"

namespace winnow {

// How a matrix lies in a GPU's memory (DeviceMatrix).
struct DeviceForm {
  Dtype dtype = Dtype::kBf16;
  int group_size = 0;
  bool is_stored = false;  // codes and scales are those of the checkpoint
};
struct LayerForms {
  DeviceForm qkv, o, gate_up, down;
};
struct DeviceForms {
  std::vector<LayerForms> layers;
  DeviceForm lm_head;
};

// The forms of a shard's matrices: as the checkpoint stores them where all that is stacked in one is fp8, or int4
// without act-order, and cuts between shards fall between groups; else `plain`. The same in every shard. Without a
// checkpoint all layers are as config.quantization says, and lm_head is plain. What is wrong with a checkpoint's
// tensors, loading says.
DeviceForms ChooseDeviceForms(const Checkpoint* checkpoint, const ModelConfig& part, WeightShard shard, Dtype plain);

// Bytes that a product reads of a matrix, scales included.
size_t MatrixBytes(const device::DeviceMatrix& matrix);

}  // namespace winnow
