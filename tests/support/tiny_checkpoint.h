#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "common/model/model_config.h"
#include "common/model/model_tensors.h"

namespace winnow {

// A tensor to be written: f32 values, stored in `dtype` (rounded to nearest even).
struct TensorToWrite {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<uint64_t> shape = {};
  std::vector<float> values = {};
};

// Bytes of a valid .safetensors file with these tensors in this order.
std::string SafetensorsBytes(std::span<const TensorToWrite> tensors);

// Bytes of a file with this header text and data, valid or not.
std::string SafetensorsBytes(std::string_view header, std::string_view data);

// A small random model.
struct TinyModel {
  ModelFamily family = ModelFamily::kQwen3;
  int num_layers = 2;
  int hidden_size = 48;
  int intermediate_size = 80;
  int num_query_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 16;
  int vocab_size = 96;
  int max_position_embeddings = 512;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  nlohmann::json rope_parameters = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  nlohmann::json extra_fields = nlohmann::json::object();  // merged into config.json last
  Dtype storage = Dtype::kBf16;
  int num_files = 1;  // above 1: shards, with an index
  uint32_t seed = 1;
};

nlohmann::json TinyConfigJson(const TinyModel& model);
// The tensors of the model: normal values scaled so that activations stay near 1, norm weights near 1.
std::vector<TensorToWrite> TinyTensors(const TinyModel& model);
// Writes config.json, generation_config.json and the weights.
void WriteTinyCheckpoint(const TinyModel& model, const std::string& directory);

}  // namespace winnow
