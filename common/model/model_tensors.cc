#include "common/model/model_tensors.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/model/quantized/stored_weight.h"

namespace winnow {
namespace {

std::string ShapeText(std::span<const uint64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

class ExpectedList {
 public:
  void Add(std::string name, std::vector<uint64_t> shape) { list_.push_back({std::move(name), std::move(shape)}); }

  void AddProjection(int layer, std::string_view name, int out_features, int in_features, bool bias) {
    const auto out = static_cast<uint64_t>(out_features);
    const std::string prefix = LayerTensor(layer, name);
    Add(prefix + ".weight", {out, static_cast<uint64_t>(in_features)});
    if (bias) Add(prefix + ".bias", {out});
  }

  std::vector<ExpectedTensor> Take() { return std::move(list_); }

 private:
  std::vector<ExpectedTensor> list_;
};

// Checks a tensor, or of a linear layer's weight those that store it, and adds what is read to `names`. The status
// names the problem.
absl::Status Check(const Checkpoint& checkpoint, const ModelConfig& config, const ExpectedTensor& expected,
                   std::set<std::string, std::less<>>& names) {
  if (IsLinearWeight(expected)) {
    WINNOW_ASSIGN_OR_RETURN(
        const StoredWeight weight,
        StoredWeight::Open(checkpoint, config.quantization, expected.name, expected.shape[0], expected.shape[1]));
    names.insert(weight.tensors().begin(), weight.tensors().end());
    return absl::OkStatus();
  }
  names.insert(expected.name);
  const absl::StatusOr<TensorView> tensor = checkpoint.Find(expected.name);
  if (!tensor.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", QuotedName(expected.name), " of shape ", ShapeText(expected.shape), " is missing"));
  }
  const std::string where =
      absl::StrCat("tensor ", QuotedName(expected.name), " in ", AbslSv(checkpoint.FileOf(expected.name)));
  if (!std::ranges::equal(tensor->shape, expected.shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " has shape ", ShapeText(tensor->shape), " instead of ", ShapeText(expected.shape)));
  }
  if (!WeightDtype(tensor->dtype).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " has dtype ", TensorDtypeName(tensor->dtype), "; supported are F32, F16 and BF16"));
  }
  return absl::OkStatus();
}

// Buffers and duplicates that old checkpoints carry: recomputed or shared, so not worth a warning.
bool IsHarmlessExtra(std::string_view name, const ModelConfig& config) {
  if (config.quantization.format != WeightQuantization::Format::kNone) {
    // Scales for activations and KV rows, which are not quantised here.
    for (const char* suffix : {".input_scale", ".output_scale", ".k_scale", ".v_scale", ".q_scale"}) {
      if (absl::EndsWith(AbslSv(name), suffix)) return true;
    }
  }
  return absl::EndsWith(AbslSv(name), "rotary_emb.inv_freq") || absl::EndsWith(AbslSv(name), "masked_bias") ||
         (config.tie_word_embeddings && name == kLmHeadTensor);
}

}  // namespace

std::string LayerTensor(int layer, std::string_view suffix) {
  return absl::StrCat("model.layers.", layer, ".", AbslSv(suffix));
}

bool IsLinearWeight(const ExpectedTensor& tensor) {
  return tensor.shape.size() == 2 && tensor.name != kEmbeddingTensor && absl::EndsWith(tensor.name, ".weight");
}

std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config) {
  const auto hidden = static_cast<uint64_t>(config.hidden_size);
  const auto vocab = static_cast<uint64_t>(config.vocab_size);
  const auto head_dim = static_cast<uint64_t>(config.head_dim);
  ExpectedList list;
  list.Add(std::string(kEmbeddingTensor), {vocab, hidden});
  for (int layer = 0; layer < config.num_layers; ++layer) {
    list.Add(LayerTensor(layer, "input_layernorm.weight"), {hidden});
    list.AddProjection(layer, "self_attn.q_proj", config.q_features(), config.hidden_size, config.qkv_bias);
    list.AddProjection(layer, "self_attn.k_proj", config.kv_features(), config.hidden_size, config.qkv_bias);
    list.AddProjection(layer, "self_attn.v_proj", config.kv_features(), config.hidden_size, config.qkv_bias);
    if (config.qk_norm) {
      list.Add(LayerTensor(layer, "self_attn.q_norm.weight"), {head_dim});
      list.Add(LayerTensor(layer, "self_attn.k_norm.weight"), {head_dim});
    }
    list.AddProjection(layer, "self_attn.o_proj", config.hidden_size, config.q_features(), config.o_bias);
    list.Add(LayerTensor(layer, "post_attention_layernorm.weight"), {hidden});
    list.AddProjection(layer, "mlp.gate_proj", config.intermediate_size, config.hidden_size, config.mlp_bias);
    list.AddProjection(layer, "mlp.up_proj", config.intermediate_size, config.hidden_size, config.mlp_bias);
    list.AddProjection(layer, "mlp.down_proj", config.hidden_size, config.intermediate_size, config.mlp_bias);
  }
  list.Add(std::string(kFinalNormTensor), {hidden});
  if (!config.tie_word_embeddings) list.Add(std::string(kLmHeadTensor), {vocab, hidden});
  return list.Take();
}

absl::StatusOr<std::vector<std::string>> ValidateTensors(const Checkpoint& checkpoint, const ModelConfig& config) {
  constexpr size_t kMaxNamed = 8;
  std::vector<std::string> problems;
  size_t num_problems = 0;
  std::set<std::string, std::less<>> expected_names;
  for (const ExpectedTensor& expected : ExpectedTensors(config)) {
    const absl::Status status = Check(checkpoint, config, expected, expected_names);
    if (!status.ok() && ++num_problems <= kMaxNamed) problems.emplace_back(status.message());
  }
  if (num_problems > 0) {
    const std::string rest = num_problems > kMaxNamed ? absl::StrCat("; and ", num_problems - kMaxNamed, " more") : "";
    return absl::InvalidArgumentError(absl::StrCat(checkpoint.directory(), ": the weights do not fit config.json (",
                                                   ModelFamilyName(config.family), "): ", absl::StrJoin(problems, "; "),
                                                   rest));
  }
  std::vector<std::string> warnings;
  for (const std::string& name : checkpoint.names()) {
    if (!expected_names.contains(name) && !IsHarmlessExtra(name, config)) {
      warnings.push_back(
          absl::StrCat("tensor ", QuotedName(name), " in ", AbslSv(checkpoint.FileOf(name)), " is not used"));
    }
  }
  return warnings;
}

}  // namespace winnow
