#include "common/model/model_tensors.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/model/layer_names.h"
#include "common/model/quantized/mxfp4.h"
#include "common/model/quantized/stored_weight.h"

namespace winnow {
namespace {

std::string ShapeText(std::span<const uint64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

class ExpectedList {
 public:
  void Add(std::string name, std::vector<uint64_t> shape) { list_.push_back({std::move(name), std::move(shape)}); }

  void AddProjection(const std::string& prefix, int out_features, int in_features, bool bias) {
    const auto out = static_cast<uint64_t>(out_features);
    Add(prefix + ".weight", {out, static_cast<uint64_t>(in_features)});
    if (bias) Add(prefix + ".bias", {out});
  }

  void AddMlp(const std::vector<std::string>& gate_up, const std::string& down, int features, int hidden_size,
              bool bias) {
    const int parts = static_cast<int>(gate_up.size());
    for (const std::string& prefix : gate_up) AddProjection(prefix, 2 * features / parts, hidden_size, bias);
    AddProjection(down, hidden_size, features, bias);
  }

  // One that the model may not have.
  void AddNorm(const std::string& name, int features) {
    if (!name.empty()) Add(name, {static_cast<uint64_t>(features)});
  }

  // Of all experts: as gpt-oss stores them with biases, plain ones by inputs, blocks of MXFP4 by outputs; others by
  // outputs.
  void AddFusedExperts(const LayerNames& names, const MoeConfig& moe, uint64_t hidden, bool mxfp4) {
    const auto experts = static_cast<uint64_t>(moe.num_experts), width = static_cast<uint64_t>(moe.intermediate_size);
    const auto add = [&](const std::string& name, uint64_t out, uint64_t in) {
      if (mxfp4) {
        list_.push_back({name + "_blocks", {experts, out, in / kMxfp4Block, kMxfp4Block / 2}, /*is_bytes=*/true});
        list_.push_back({name + "_scales", {experts, out, in / kMxfp4Block}, /*is_bytes=*/true});
      } else {
        Add(name, moe.biases ? std::vector<uint64_t>{experts, in, out} : std::vector<uint64_t>{experts, out, in});
      }
      if (moe.biases) Add(name + "_bias", {experts, out});
    };
    add(names.fused_gate_up, 2 * width, hidden);
    add(names.fused_down, hidden, width);
  }

  void AddLatentAttention(const LayerNames& names, const LatentConfig& latent, const ModelConfig& config) {
    const int heads = config.num_query_heads, rank = latent.shape.rank;
    AddProjection(names.qkv[0], config.query_projection_features(), config.hidden_size, config.qkv_bias);
    AddProjection(names.qkv[1], latent.shape.key_dim(), config.hidden_size, config.qkv_bias);
    AddNorm(names.query_latent_norm, latent.query_rank);
    if (!names.query_up.empty()) AddProjection(names.query_up, heads * latent.query_dim(), latent.query_rank, false);
    AddNorm(names.key_latent_norm, rank);
    AddProjection(names.key_value_up, heads * (latent.nope_dim + latent.value_dim), rank, false);
    const IndexerConfig& indexer = latent.indexer;
    if (indexer.num_heads == 0) return;
    AddProjection(names.index_query, indexer.num_heads * indexer.head_dim, latent.query_rank, false);
    AddProjection(names.index_key, indexer.head_dim, config.hidden_size, false);
    AddProjection(names.index_weight, indexer.num_heads, config.hidden_size, false);
    AddNorm(names.index_norm, indexer.head_dim);
    AddNorm(names.index_norm_bias, indexer.head_dim);
  }

  void AddLinearAttention(const LayerNames& names, const GatedDeltaConfig& delta, int hidden_size) {
    const int first = delta.by_key_head ? delta.projected_features() : delta.conv_features();
    AddProjection(names.qkv.front(), first, hidden_size, false);
    if (!delta.by_key_head) AddProjection(names.qkv.back(), delta.value_features(), hidden_size, false);
    for (const std::string& rates : names.rates) {
      AddProjection(rates, 2 * delta.num_value_heads / static_cast<int>(names.rates.size()), hidden_size, false);
    }
    Add(names.conv, {static_cast<uint64_t>(delta.conv_features()), 1, static_cast<uint64_t>(delta.conv_width)});
    AddNorm(names.log_forgetting, delta.num_value_heads);
    AddNorm(names.rate_bias, delta.num_value_heads);
    AddNorm(names.delta_norm, delta.value_dim);
    AddProjection(names.o, hidden_size, delta.value_features(), false);
  }

  void AddAttention(const LayerNames& names, const ModelConfig& config) {
    if (config.latent) {
      AddLatentAttention(names, *config.latent, config);
    } else if (names.qkv.size() == 1) {
      AddProjection(names.qkv[0], config.qkv_features(), config.hidden_size, config.qkv_bias);
    } else {
      AddProjection(names.qkv[0], config.query_projection_features(), config.hidden_size, config.qkv_bias);
      AddProjection(names.qkv[1], config.kv_features(), config.hidden_size, config.qkv_bias);
      AddProjection(names.qkv[2], config.kv_features(), config.hidden_size, config.qkv_bias);
    }
    AddNorm(names.q_norm, config.q_norm_features());
    AddNorm(names.k_norm, config.k_norm_features());
    AddNorm(names.sinks, config.num_query_heads);
    AddProjection(names.o, config.hidden_size, config.o_features(), config.o_bias);
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
  if (expected.is_bytes) {
    if (tensor->dtype == TensorDtype::kU8) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(where, " has dtype ", TensorDtypeName(tensor->dtype), "; MXFP4 is stored as U8"));
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
  // Layers behind the last one predict further tokens; those of hybrid models have a name of their own.
  if (config.delta && name.starts_with("mtp.")) return true;
  int layer = 0;
  constexpr std::string_view kLayers = "model.layers.";
  if (name.starts_with(kLayers)) {
    const std::string_view number = name.substr(kLayers.size());
    std::from_chars(number.data(), number.data() + number.size(), layer);
    if (layer >= config.num_layers) return true;
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
  ExpectedList list;
  list.Add(std::string(kEmbeddingTensor), {vocab, hidden});
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const LayerNames names = LayerNamesOf(config, layer);
    list.AddNorm(names.attention_norm, config.hidden_size);
    if (config.is_delta(layer)) {
      list.AddLinearAttention(names, *config.delta, config.hidden_size);
    } else {
      list.AddAttention(names, config);
    }
    list.AddNorm(names.attention_post_norm, config.hidden_size);
    list.AddNorm(names.mlp_norm, config.hidden_size);
    list.AddNorm(names.mlp_post_norm, config.hidden_size);
    if (!names.down.empty()) {
      list.AddMlp(names.gate_up, names.down, config.mlp_features(layer), config.hidden_size, config.mlp_bias);
    }
    if (!names.shared_gate.empty()) list.AddProjection(names.shared_gate, 1, config.hidden_size, false);
    if (!names.router.empty()) {
      list.AddProjection(names.router, config.moe.num_experts, config.hidden_size, config.moe.biases);
    }
    list.AddNorm(names.router_correction, config.moe.num_experts);
    if (!names.fused_down.empty()) {
      list.AddFusedExperts(names, config.moe, hidden, config.quantization.format == WeightQuantization::Format::kMxfp4);
    }
    for (const LayerNames::Expert& expert : names.experts) {
      list.AddMlp(expert.gate_up, expert.down, config.moe.intermediate_size, config.hidden_size, false);
    }
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
