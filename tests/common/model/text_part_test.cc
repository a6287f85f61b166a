#include "common/model/text_part.h"

#include <gmock/gmock.h>

#include "common/model/checkpoint.h"
#include "common/model/model_config.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// As the 4B checkpoint has it: most fields are left to their defaults.
json Gemma3Multimodal() {
  return json::parse(R"({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
    "boi_token_index": 255999, "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144,
    "initializer_range": 0.02, "mm_tokens_per_image": 256, "torch_dtype": "bfloat16",
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
      "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152, "image_size": 896, "model_type": "siglip_vision_model"}})");
}

json MistralMultimodal() {
  return json::parse(R"({"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
    "image_token_index": 10, "spatial_merge_size": 2, "vision_feature_layer": -1,
    "text_config": {"head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 32768,
      "max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0, "sliding_window": null,
      "vocab_size": 131072},
    "vision_config": {"hidden_size": 1024, "model_type": "pixtral"}})");
}

absl::StatusOr<ModelConfig> ParseMultimodal(const json& config) {
  return ParseModelConfig(config.dump(), "", "dir");
}

TEST(TextPartTest, IsReadWithTheDefaultsOfItsFamilyAndTheTokensBesideIt) {
  const auto gemma = ParseMultimodal(Gemma3Multimodal());
  ASSERT_THAT(gemma, IsOkStatus());
  EXPECT_EQ(gemma->family, ModelFamily::kGemma3);
  EXPECT_EQ(gemma->num_query_heads, 8);
  EXPECT_EQ(gemma->num_kv_heads, 4);
  EXPECT_EQ(gemma->head_dim, 256);
  EXPECT_EQ(gemma->vocab_size, 262208);
  EXPECT_TRUE(gemma->tie_word_embeddings);
  EXPECT_EQ(gemma->window(0), 1024u);
  EXPECT_EQ(gemma->window(5), 0u);
  EXPECT_EQ(gemma->rope_of(0).theta, 10000);
  EXPECT_EQ(gemma->rope_of(5).theta, 1e6);
  EXPECT_EQ(gemma->rope_of(5).factor, 8);
  EXPECT_THAT(gemma->eos_token_ids, ElementsAre(1, 106));
  EXPECT_THAT(gemma->warnings, ElementsAre(HasSubstr("Gemma3ForConditionalGeneration the language model alone")));

  const auto mistral = ParseMultimodal(MistralMultimodal());
  ASSERT_THAT(mistral, IsOkStatus());
  EXPECT_EQ(mistral->family, ModelFamily::kMistral);
  EXPECT_EQ(mistral->num_layers, 40);
  EXPECT_FALSE(mistral->tie_word_embeddings);
  EXPECT_EQ(mistral->warnings.size(), 1u);
}

TEST(TextPartTest, ErrorsNameTheFieldInsideTheTextPart) {
  json config = Gemma3Multimodal();
  config.erase("text_config");
  EXPECT_THAT(ParseMultimodal(config),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("dir/config.json: text_config is missing")));
  config = MistralMultimodal();
  config["text_config"]["model_type"] = "ministral3";
  EXPECT_THAT(ParseMultimodal(config), FailsWith(absl::StatusCode::kInvalidArgument,
                                                 HasSubstr("dir/config.json: text_config.model_type is 'ministral3'")));
  config = MistralMultimodal();
  config["text_config"]["num_attention_heads"] = 0;
  EXPECT_THAT(ParseMultimodal(config),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("text_config.num_attention_heads is 0")));
  config["architectures"] = {"LlavaForConditionalGeneration"};
  EXPECT_THAT(ParseMultimodal(config), FailsWith(absl::StatusCode::kInvalidArgument,
                                                 HasSubstr("the language models of Gemma3ForConditionalGeneration")));
}

TEST(TextPartTest, ModulesThatAreNotQuantisedHaveTheNamesOfTheTextPart) {
  json config = MistralMultimodal();
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"ignore", {"language_model.lm_head", "re:vision_tower.*"}}};
  const auto part = TextPart(JsonFields(config, "c"), *MultimodalTraitsOf(JsonFields(config, "c")));
  ASSERT_THAT(part, IsOkStatus());
  EXPECT_THAT(part->at("quantization_config").at("ignore"), ElementsAre("lm_head", "re:vision_tower.*"));
}

TEST(TextPartTest, TensorsHaveTheNamesOfAModelThatIsStoredAlone) {
  EXPECT_EQ(TextTensorName("language_model.model.layers.0.mlp.up_proj.weight"), "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(TextTensorName("language_model.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(TextTensorName("model.language_model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(TextTensorName("model.layers.0.mlp.up_proj.weight"), "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(TextTensorName("vision_tower.encoder.norm.weight"), "vision_tower.encoder.norm.weight");

  const TempDir dir;
  dir.Write("config.json", "{}");
  const auto tensor = [](const char* name) { return TensorToWrite{.name = name, .shape = {1}, .values = {1}}; };
  dir.Write("model.safetensors", SafetensorsBytes(std::vector<TensorToWrite>{tensor("language_model.model.norm.weight"),
                                                                             tensor("vision_tower.norm.weight")}));
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_THAT(checkpoint, IsOkStatus());
  EXPECT_THAT((*checkpoint)->names(), ElementsAre("model.norm.weight", "vision_tower.norm.weight"));
  EXPECT_THAT((*checkpoint)->Find("model.norm.weight"), IsOkStatus());
}

}  // namespace
}  // namespace winnow
