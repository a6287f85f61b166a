#include "common/model/text_part.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace winnow {
namespace {

using nlohmann::json;

constexpr MultimodalTraits kMultimodal[] = {
    {.architecture = "Gemma3ForConditionalGeneration",
     .text_architecture = "Gemma3ForCausalLM",
     .text_defaults = R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
                          "num_attention_heads": 8, "num_key_value_heads": 4, "rope_theta": 1000000.0,
                          "sliding_window": 4096})"},
    {.architecture = "Qwen3_5ForConditionalGeneration", .text_architecture = "Qwen3_5ForCausalLM"},
    {.architecture = "Qwen3_5MoeForConditionalGeneration", .text_architecture = "Qwen3_5MoeForCausalLM"},
    {.architecture = "Mistral3ForConditionalGeneration", .text_architecture = "MistralForCausalLM"}};

// Modules that a quantised checkpoint leaves as they are stand in lists of names, or of patterns that begin with "re:".
void RenameModules(json& quantization) {
  for (const char* field : {"ignore", "modules_to_not_convert"}) {
    const auto modules = quantization.find(field);
    if (modules == quantization.end() || !modules->is_array()) continue;
    for (json& module : *modules) {
      if (module.is_string()) module = TextTensorName(module.get_ref<const std::string&>());
    }
  }
}

}  // namespace

const MultimodalTraits* MultimodalTraitsOf(const JsonFields& config) {
  const auto architectures = config.object().find("architectures");
  if (architectures == config.object().end() || !architectures->is_array() || architectures->empty()) return nullptr;
  for (const MultimodalTraits& traits : kMultimodal) {
    if (architectures->front() == traits.architecture) return &traits;
  }
  return nullptr;
}

absl::StatusOr<json> TextPart(const JsonFields& config, const MultimodalTraits& traits) {
  WINNOW_ASSIGN_OR_RETURN(const json* text, config.Object("text_config"));
  if (text == nullptr) return config.Error("text_config", "is missing");
  json part = *text;
  part["architectures"] = {traits.text_architecture};
  const JsonFields fields(part, "");
  for (const char* field : {"bos_token_id", "eos_token_id", "quantization_config", "tie_word_embeddings"}) {
    if (!fields.Has(field) && config.Has(field)) part[field] = config.object().at(field);
  }
  if (const auto quantization = part.find("quantization_config"); quantization != part.end()) {
    if (quantization->is_object()) RenameModules(*quantization);
  }
  const json defaults = json::parse(traits.text_defaults);
  for (const auto& [field, value] : defaults.items()) {
    const bool newer = field == "rope_theta" && part.contains("rope_parameters");
    if (!newer && !part.contains(field)) part[field] = value;
  }
  return part;
}

void DropRotationOfImages(json& config) {
  for (const char* source : {"rope_parameters", "rope_scaling"}) {
    const auto rope = config.find(source);
    if (rope == config.end() || !rope->is_object()) continue;
    rope->erase("mrope_section");
    rope->erase("mrope_interleaved");
  }
}

std::string TextTensorName(std::string_view name) {
  absl::string_view rest = AbslSv(name);
  if (absl::ConsumePrefix(&rest, "language_model.")) return std::string(rest);
  if (absl::ConsumePrefix(&rest, "model.language_model.")) return absl::StrCat("model.", rest);
  return std::string(name);
}

std::string SupportedMultimodal() {
  std::string names = "the language models of ";
  for (size_t i = 0; i < std::size(kMultimodal); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : " and ", kMultimodal[i].architecture);
  }
  return names;
}

}  // namespace winnow
