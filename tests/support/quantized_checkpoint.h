#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/tiny_checkpoint.h"

namespace winnow {

// A tensor of any dtype of the safetensors format.
struct RawTensor {
  std::string dtype;  // as the format spells it
  std::vector<uint64_t> shape;
  std::string bytes;
};
using RawTensors = std::map<std::string, RawTensor>;

// One way in which checkpoints store weights.
struct QuantizedForm {
  const char* name;
  nlohmann::json config;  // quantization_config
  // How: "gptq", "awq", "packed", "int8" or "fp8".
  const char* layout;
  int bits = 4;
  int group_size = 32;     // of "fp8" with blocks: 32 inputs; 0: one scale for all inputs
  int block_rows = 1;      // outputs that share a scale; 0: all
  bool act_order = false;  // groups of random inputs
  bool has_zeros = true;
  int zero_offset = 0;  // what the reader adds to stored zeros
  const char* scale = "scales";
};

// Forms that are read, one for each thing in which they differ.
std::vector<QuantizedForm> QuantizedForms();
inline void PrintTo(const QuantizedForm& form, std::ostream* out) {
  *out << form.name;
}

// A model whose widths fit all forms.
TinyModel QuantizableModel();

// Writes a model of random codes to `quantized`, and the same weights as f32 to `plain`. Weights of layers that `leave`
// names stay plain. `change` may alter what is written of the first.
void WriteQuantizedCheckpoint(TinyModel model, const QuantizedForm& form, const std::string& quantized,
                              const std::string& plain,
                              const std::function<bool(const std::string& tensor)>& leave = nullptr,
                              const std::function<void(RawTensors&)>& change = nullptr);

// The same of a gpt-oss whose experts are MXFP4, as it is published: every width is a multiple of 32.
void WriteMxfp4Checkpoint(TinyModel model, const std::string& quantized, const std::string& plain,
                          const std::function<void(RawTensors&)>& change = nullptr);

}  // namespace winnow
