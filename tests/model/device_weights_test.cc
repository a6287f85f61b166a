// What a GPU holds of a checkpoint, seen on a GPU made of host memory.
#include "model/weights/device_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/model/model_tensors.h"
#include "common/model/synthetic_models.h"
#include "common/model/tensor_elements.h"
#include "kernels/cpu/scalar.h"
#include "kernels/device/params/expert_codes.h"
#include "tests/support/host_gpu/host_device.h"
#include "tests/support/host_gpu/host_table.h"
#include "tests/support/quantized_checkpoint.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow {
namespace {

// The weights [out_features, in_features] that products see: columns of outputs for unit vectors.
std::vector<float> ValuesOf(const device::DeviceTable& table, const device::DeviceMatrix& matrix) {
  const auto in = static_cast<size_t>(matrix.in_features), out = static_cast<size_t>(matrix.out_features);
  std::vector<uint16_t> units(in * in);
  for (size_t k = 0; k < in; ++k) units[k * in + k] = F32ToBf16(1);
  std::vector<float> y(in * out), values(out * in);
  table.matmul->prefill_matmul(device::Stream(), {.x = units.data(),
                                                  .x_stride = matrix.in_features,
                                                  .num_rows = matrix.in_features,
                                                  .weight = matrix,
                                                  .y = y.data(),
                                                  .y_stride = matrix.out_features});
  for (size_t n = 0; n < out; ++n) {
    for (size_t k = 0; k < in; ++k) values[n * in + k] = y[k * out + n];
  }
  return values;
}

// The same of a checkpoint that is not quantised.
std::vector<float> ValuesIn(const Checkpoint& plain, const std::vector<WeightPiece>& pieces) {
  std::vector<float> values;
  for (const WeightPiece& piece : pieces) {
    const TensorView tensor = plain.Find(piece.tensor).value();
    for (size_t row = piece.first_row; row < piece.first_row + piece.rows; ++row) {
      AppendAsF32(tensor, row * piece.tensor_columns + piece.first_column, piece.columns, values);
    }
  }
  return values;
}

TinyModel UploadedModel() {
  TinyModel model = QuantizableModel();
  model.head_dim = 64;
  return model;
}

class QuantizedUploadTest : public testing::TestWithParam<QuantizedForm> {};

// Whole and in halves, of which some cut rows and others columns.
TEST_P(QuantizedUploadTest, HoldsTheWeightsAsStoredOrDequantised) {
  const QuantizedForm& form = GetParam();
  const bool fp8 = form.layout == std::string("fp8");
  const bool is_kept = fp8 || (form.bits == 4 && !form.act_order);
  const TinyModel model = UploadedModel();
  const TempDir quantized, plain;
  WriteQuantizedCheckpoint(model, form, quantized.path(), plain.path());
  const auto checkpoint = Checkpoint::Open(quantized.path()).value(),
             reference = Checkpoint::Open(plain.path()).value();
  const ModelConfig config = LoadModelConfig(quantized.path()).value();
  const device::DeviceTable& table = test::HostGpuTable();
  const auto device = test::OpenHostDevice(0);
  ASSERT_THAT(device, IsOkStatus());
  for (const WeightShard shard : {WeightShard{0, 1}, WeightShard{0, 2}, WeightShard{1, 2}}) {
    SCOPED_TRACE(absl::StrCat("shard ", shard.index, " of ", shard.count));
    const auto weights = DeviceWeights::Load(table, **device, *checkpoint, config, {.shard = shard});
    ASSERT_THAT(weights, IsOkStatus());
    EXPECT_EQ((*weights)->bytes(), DeviceWeightBytes(table, config, {.shard = shard}, checkpoint.get()));
    for (int l = 0; l < model.num_layers; ++l) {
      const DeviceLayerWeights& layer = (*weights)->layer(l);
      const LayerPieces pieces = PiecesOfLayer((*weights)->config(), shard, l);
      const std::pair<device::DeviceMatrix, std::vector<WeightPiece>> matrices[] = {
          {layer.qkv, pieces.qkv}, {layer.o, pieces.o}, {layer.gate_up, pieces.gate_up}, {layer.down, pieces.down}};
      for (const auto& [matrix, stacked] : matrices) {
        SCOPED_TRACE(stacked.front().tensor);
        // Half of the inputs of `down` are 48, which is no number of groups.
        const bool cuts_group = stacked.front().columns % 32 != 0;
        EXPECT_EQ(matrix.dtype, !is_kept || cuts_group ? Dtype::kBf16 : fp8 ? Dtype::kF8 : Dtype::kI4);
        std::vector<float> expected = ValuesIn(*reference, stacked);
        if (matrix.dtype == Dtype::kBf16) {
          for (float& value : expected) value = Bf16ToF32(F32ToBf16(value));
        }
        ASSERT_EQ(ValuesOf(table, matrix), expected);
      }
    }
  }
}

// Of each head the rows of the checkpoint that give its key, turned, and those that give its value.
TEST(LatentUpload, ProjectionsLieByHead) {
  const TempDir directory;
  WriteTinyCheckpoint({.family = ModelFamily::kDeepseekV3}, directory.path());
  const auto checkpoint = Checkpoint::Open(directory.path()).value();
  const ModelConfig config = LoadModelConfig(directory.path()).value();
  const auto device = test::OpenHostDevice(0);
  const auto weights = DeviceWeights::Load(test::HostGpuTable(), **device, *checkpoint, config);
  ASSERT_THAT(weights, IsOkStatus());
  EXPECT_EQ((*weights)->bytes(), DeviceWeightBytes(test::HostGpuTable(), config, {}));
  const size_t heads = config.num_query_heads, rank = config.latent->shape.rank;
  const size_t nope = config.latent->nope_dim, value = config.latent->value_dim, rows = heads * (nope + value);
  const DeviceLatentWeights& latent = (*weights)->layer(1).latent;
  const std::vector<float> stored =
      ValuesIn(*checkpoint, {{LayerTensor(1, "self_attn.kv_b_proj.weight"), rows, rank, 0, rows, 0, rank}});
  const auto* const keys = static_cast<const uint16_t*>(latent.key_up);
  const auto* const values = static_cast<const uint16_t*>(latent.value_up);
  for (size_t row = 0; row < rows; ++row) {
    const size_t head = row / (nope + value), i = row % (nope + value);
    for (size_t at = 0; at < rank; ++at) {
      const uint16_t held =
          i < nope ? keys[(head * rank + at) * nope + i] : values[(head * value + i - nope) * rank + at];
      ASSERT_EQ(held, F32ToBf16(stored[row * rank + at])) << "row " << row << ", latent " << at;
    }
  }
  EXPECT_EQ(latent.query_up.out_features, static_cast<int>(heads * config.latent->query_dim()));
}

TEST(QuantizedUpload, AStackOfSeveralFormsIsDequantised) {
  const TempDir quantized, plain;
  WriteQuantizedCheckpoint(UploadedModel(), QuantizedForms().front(), quantized.path(), plain.path(),
                           [](const std::string& name) { return name == LayerTensor(0, "self_attn.k_proj.weight"); });
  const auto device = test::OpenHostDevice(0);
  const auto weights = DeviceWeights::Load(test::HostGpuTable(), **device, *Checkpoint::Open(quantized.path()).value(),
                                           LoadModelConfig(quantized.path()).value());
  ASSERT_THAT(weights, IsOkStatus());
  EXPECT_EQ((*weights)->layer(0).qkv.dtype, Dtype::kBf16);
  EXPECT_EQ((*weights)->layer(0).o.dtype, Dtype::kF8);
  EXPECT_EQ((*weights)->layer(1).qkv.dtype, Dtype::kF8);
}

TEST(QuantizedUpload, QueriesAloneHaveTheFormOfTheirStack) {
  const TempDir quantized, plain;
  WriteQuantizedCheckpoint(UploadedModel(), QuantizedForms().front(), quantized.path(), plain.path(),
                           [](const std::string& name) { return name == LayerTensor(0, "self_attn.k_proj.weight"); });
  const auto device = test::OpenHostDevice(0);
  const auto weights = DeviceWeights::Load(test::HostGpuTable(), **device, *Checkpoint::Open(quantized.path()).value(),
                                           LoadModelConfig(quantized.path()).value(),
                                           {.shard = {}, .parts = WeightParts::kQueryProjections});
  ASSERT_THAT(weights, IsOkStatus());
  EXPECT_EQ((*weights)->layer(0).qkv.dtype, Dtype::kBf16);
  EXPECT_EQ((*weights)->layer(1).qkv.dtype, Dtype::kF8);
  EXPECT_EQ((*weights)->layer(1).qkv.out_features, 6 * 64);
}

// Attention stays as stored, and what experts mean is what the same weights mean that are plain.
TEST_P(QuantizedUploadTest, DequantisesExperts) {
  TinyModel model = UploadedModel();
  model.family = ModelFamily::kQwen3Moe;
  model.extra_fields = {{"moe_intermediate_size", 96}};
  const TempDir quantized, plain;
  WriteQuantizedCheckpoint(model, GetParam(), quantized.path(), plain.path());
  const device::DeviceTable& table = test::HostGpuTable();
  const auto device = test::OpenHostDevice(0);
  ASSERT_THAT(device, IsOkStatus());
  const auto load = [&](const TempDir& dir) {
    return DeviceWeights::Load(table, **device, *Checkpoint::Open(dir.path()).value(),
                               LoadModelConfig(dir.path()).value());
  };
  const auto weights = load(quantized), expected = load(plain);
  ASSERT_THAT(weights, IsOkStatus());
  ASSERT_THAT(expected, IsOkStatus());
  for (int i = 0; i < model.num_layers; ++i) {
    const device::ExpertMatrices& experts = (*weights)->layer(i).experts;
    const device::ExpertMatrices& others = (*expected)->layer(i).experts;
    ASSERT_EQ(experts.num_experts, 6);
    const size_t matrix_bytes = size_t{2} * experts.num_all() * experts.hidden_size * experts.intermediate_size;
    EXPECT_EQ(std::memcmp(experts.gate_up, others.gate_up, 2 * matrix_bytes), 0) << "layer " << i;
    EXPECT_EQ(std::memcmp(experts.down, others.down, matrix_bytes), 0) << "layer " << i;
    const size_t router_bytes = sizeof(float) * experts.num_logits() * experts.hidden_size;
    EXPECT_EQ(std::memcmp(experts.router, others.router, router_bytes), 0) << "layer " << i;
  }
}

// A row of an expert's matrix in MXFP4, as numbers.
std::vector<float> ValuesOfCodes(const void* matrices, const uint8_t* scales, size_t row, size_t in) {
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const auto* const words = static_cast<const uint32_t*>(matrices) + row * in / 8;
  std::vector<float> values;
  for (size_t i = 0; i < in; ++i) {
    const uint32_t code = device::ExpertCodeAt(words[i / 8], static_cast<int>(i % 8));
    const float value = std::ldexp(kMagnitudes[code & 7], scales[(row * in + i) / 32] - 127);
    values.push_back((code & 8) != 0 ? -value : value);
  }
  return values;
}

// Experts that lie in one tensor, by inputs or as MXFP4, with gate and up in turn: they mean the numbers of the
// checkpoint either way, and have their biases. MXFP4 stays.
TEST(FusedExperts, AreSortedAndKeptAsStored) {
  TinyModel model = UploadedModel();
  model.family = ModelFamily::kGptOss;
  model.attention_bias = true;
  const TempDir quantized, plain;
  WriteMxfp4Checkpoint(model, quantized.path(), plain.path());
  const auto device = test::OpenHostDevice(0);
  const auto load = [&](const TempDir& dir) {
    return DeviceWeights::Load(test::HostGpuTable(), **device, *Checkpoint::Open(dir.path()).value(),
                               LoadModelConfig(dir.path()).value());
  };
  const auto weights = load(quantized), expected = load(plain);
  ASSERT_THAT(weights, IsOkStatus());
  ASSERT_THAT(expected, IsOkStatus());
  const auto checkpoint = Checkpoint::Open(plain.path()).value();
  for (int l = 0; l < model.num_layers; ++l) {
    const device::ExpertMatrices& experts = (*expected)->layer(l).experts;
    const size_t hidden = experts.hidden_size, width = experts.intermediate_size, count = experts.num_experts;
    const device::ExpertMatrices& codes = (*weights)->layer(l).experts;
    ASSERT_TRUE(codes.mxfp4 && !experts.mxfp4);
    const auto as_bf16 = [](const std::vector<float>& values) {
      std::vector<uint16_t> bits(values.size());
      std::transform(values.begin(), values.end(), bits.begin(), F32ToBf16);
      return bits;
    };
    for (size_t row = 0; row < count * 2 * width; ++row) {
      const auto* const plain_row = static_cast<const uint16_t*>(experts.gate_up) + row * hidden;
      ASSERT_EQ(as_bf16(ValuesOfCodes(codes.gate_up, codes.gate_up_scales, row, hidden)),
                std::vector<uint16_t>(plain_row, plain_row + hidden));
    }
    for (size_t row = 0; row < count * hidden; ++row) {
      const auto* const plain_row = static_cast<const uint16_t*>(experts.down) + row * width;
      ASSERT_EQ(as_bf16(ValuesOfCodes(codes.down, codes.down_scales, row, width)),
                std::vector<uint16_t>(plain_row, plain_row + width));
    }
    const auto values = [&](const char* name) {
      const TensorView tensor = checkpoint->Find(LayerTensor(l, absl::StrCat("mlp.experts.", name))).value();
      std::vector<float> all;
      AppendAsF32(tensor, 0, tensor.bytes.size() / TensorDtypeBytes(tensor.dtype), all);
      return all;
    };
    const std::vector<float> gate_up = values("gate_up_proj"), down = values("down_proj");
    const std::vector<float> gate_up_bias = values("gate_up_proj_bias"), down_bias = values("down_proj_bias");
    const auto* const packed = static_cast<const uint16_t*>(experts.gate_up);
    const auto* const packed_down = static_cast<const uint16_t*>(experts.down);
    for (size_t expert = 0; expert < count; ++expert) {
      for (size_t out = 0; out < 2 * width; ++out) {
        const size_t stored = out % width * 2 + out / width;
        ASSERT_EQ(experts.gate_up_bias[expert * 2 * width + out], gate_up_bias[expert * 2 * width + stored]);
        for (size_t in = 0; in < hidden; ++in) {
          ASSERT_EQ(packed[(expert * 2 * width + out) * hidden + in],
                    F32ToBf16(gate_up[(expert * hidden + in) * 2 * width + stored]));
        }
      }
      for (size_t out = 0; out < hidden; ++out) {
        ASSERT_EQ(experts.down_bias[expert * hidden + out], down_bias[expert * hidden + out]);
        for (size_t in = 0; in < width; ++in) {
          ASSERT_EQ(packed_down[(expert * hidden + out) * width + in],
                    F32ToBf16(down[(expert * width + in) * hidden + out]));
        }
      }
    }
  }
}

// Without a checkpoint sizes are those that its config promises.
TEST(QuantizedUpload, ConfigsGiveTheBytesOfTheirForms) {
  const auto bytes = [](const char* model) {
    const ModelConfig config = SyntheticModelConfig(model).value();
    const DeviceWeightOptions options;
    const size_t embedding = size_t{2} * config.vocab_size * config.hidden_size;  // as are those of lm_head
    return static_cast<double>(DeviceWeightBytes(test::HostGpuTable(), config, options) - 2 * embedding);
  };
  const double bf16 = bytes("synthetic:qwen3-8b");
  EXPECT_NEAR(bytes("synthetic:qwen3-8b-fp8") / bf16, (8 + 32.0 / (16 * 128)) / 16, 1e-3);
  EXPECT_NEAR(bytes("synthetic:qwen3-8b-int4") / bf16, 4.25 / 16, 1e-3);
}

TEST(QuantizedUpload, AZeroBeyondTheCodesIsAnError) {
  const std::vector<QuantizedForm> forms = QuantizedForms();
  const auto form = std::find_if(forms.begin(), forms.end(),
                                 [](const QuantizedForm& one) { return one.name == std::string("PackedZeros"); });
  ASSERT_NE(form, forms.end());
  const std::string module = LayerTensor(1, "self_attn.o_proj");
  const TempDir quantized, plain;
  WriteQuantizedCheckpoint(UploadedModel(), *form, quantized.path(), plain.path(), nullptr, [&](RawTensors& tensors) {
    RawTensor& zeros = tensors[module + ".weight_zero_point"];
    const std::vector<uint64_t> shape = tensors[module + ".weight_scale"].shape;
    zeros = {"I8", shape, std::string(shape[0] * shape[1], '\x00')};
    zeros.bytes[5] = 40;
  });
  const auto device = test::OpenHostDevice(0);
  const auto weights = DeviceWeights::Load(test::HostGpuTable(), **device, *Checkpoint::Open(quantized.path()).value(),
                                           LoadModelConfig(quantized.path()).value());
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(weights.status().message()),
              testing::AllOf(testing::HasSubstr("model.safetensors"), testing::HasSubstr(module),
                             testing::HasSubstr("is 48 and has to be 0 to 16")));
}

INSTANTIATE_TEST_SUITE_P(Forms, QuantizedUploadTest, testing::ValuesIn(QuantizedForms()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace winnow
