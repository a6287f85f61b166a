#include "cmd/role/options/model_options.h"

#include <filesystem>

#include "common/model/synthetic_models.h"

namespace winnow {
namespace {

constexpr char kModelFolder[] =
    "; the folder of a model, as Hugging Face has them, holds config.json, *.safetensors and a tokenizer: "
    "tokenizer.json, tokenizer.model, *.tiktoken or vocab.txt";

}  // namespace

void DeclareCompute(Fields& fields, Dtype* compute) {
  fields.Enum(
      "compute", compute, {{"auto", Dtype::kBf16}, {"bf16", Dtype::kBf16}, {"f32", Dtype::kF32}, {"fp8", Dtype::kF8}},
      "Type of weights and matrix inputs: auto = bf16; f32, on CPUs, doubles the memory and the time of a step; "
      "fp8, on GPUs, halves the memory of the weights, which are rounded to e4m3 with a scale per output. Weights that "
      "a checkpoint quantises stay as they are, on GPUs most of them, whatever this says.");
}

void DeclareKvDtype(Fields& fields, Dtype* kv_dtype) {
  fields.Enum(
      "kv-dtype", kv_dtype, {{"bf16", Dtype::kBf16}, {"f32", Dtype::kF32}, {"int8", Dtype::kI8}},
      "Type of KV rows. f32, on CPUs, doubles them. int8, on CPUs and on one GPU, about halves them, wherever "
      "they lie and when they travel: keys and values are rounded to 8 bits with a scale each, and scorers read "
      "the keys as they are, so that no copy of them is kept. Models with latent attention have no such rows, "
      "nor have ranks with --tensor-parallel or --slot-host-memory and the GPUs of cache ranks.");
}

void DeclareMaxContext(Fields& fields, uint32_t* max_context) {
  fields.Integer(
      "max-context", max_context,
      "Longest prompt and answer together, in tokens, at least 2; 0 = the model's. Resident memory grows with it. "
      "Models with longrope rotate by short_factor where it is at most original_max_position_embeddings, else by "
      "long_factor.",
      0u, 1u << 24);
}

absl::Status CheckMaxContext(uint32_t max_context) {
  if (max_context != 1) return absl::OkStatus();
  return absl::InvalidArgumentError("--max-context=1 leaves no token for the answer: at least 2, or 0");
}

absl::Status CheckModelOption(const std::string& model) {
  if (model.empty()) return absl::InvalidArgumentError("--model DIR is required");
  std::error_code error;
  if (IsSyntheticModel(model)) return Annotate(SyntheticModelConfig(model).status(), "--model");
  if (!std::filesystem::is_directory(model, error)) {
    return absl::InvalidArgumentError(absl::StrCat("--model: there is no folder ", model, kModelFolder));
  }
  if (!std::filesystem::exists(std::filesystem::path(model) / "config.json", error)) {
    return absl::InvalidArgumentError(absl::StrCat("--model: no config.json in ", model, kModelFolder));
  }
  return absl::OkStatus();
}

}  // namespace winnow
