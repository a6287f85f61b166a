#include "common/model/model_tensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class ModelTensorsTest : public testing::Test {
 protected:
  // Opens the tiny model after `edit` changed its tensors.
  template <typename Edit>
  std::unique_ptr<Checkpoint> Write(const TinyModel& model, const Edit& edit) {
    std::vector<TensorToWrite> tensors = TinyTensors(model);
    edit(tensors);
    dir_.Write("config.json", TinyConfigJson(model).dump());
    dir_.Write("model.safetensors", SafetensorsBytes(tensors));
    config_ = LoadModelConfig(dir_.path()).value();
    return Checkpoint::Open(dir_.path()).value();
  }
  static TensorToWrite& Named(std::vector<TensorToWrite>& tensors, std::string_view name) {
    const auto it =
        std::find_if(tensors.begin(), tensors.end(), [name](const TensorToWrite& t) { return t.name == name; });
    EXPECT_NE(it, tensors.end()) << name;
    return *it;
  }

  TempDir dir_;
  ModelConfig config_;
};

TEST_F(ModelTensorsTest, AcceptsWhatFits) {
  for (const ModelFamily family :
       {ModelFamily::kLlama, ModelFamily::kMistral, ModelFamily::kQwen2, ModelFamily::kQwen3}) {
    for (const bool tied : {false, true}) {
      const auto checkpoint = Write({.family = family, .tie_word_embeddings = tied}, [](auto&) {});
      const auto warnings = ValidateTensors(*checkpoint, config_);
      ASSERT_THAT(warnings, IsOkStatus());
      EXPECT_THAT(*warnings, IsEmpty());
      EXPECT_THAT(CheckWeightsFinite(*checkpoint, config_, 2), IsOkStatus());
    }
  }
}

TEST_F(ModelTensorsTest, ListsBiasesAndNormsByFamily) {
  const auto count = [this](const TinyModel& model) { return Write(model, [](auto&) {})->names().size(); };
  const size_t plain = count({.family = ModelFamily::kLlama});
  EXPECT_EQ(plain, 3u + 2 * 9);
  EXPECT_EQ(count({.family = ModelFamily::kLlama, .tie_word_embeddings = true}), plain - 1);
  EXPECT_EQ(count({.family = ModelFamily::kLlama, .attention_bias = true}), plain + 2 * 4);
  EXPECT_EQ(count({.family = ModelFamily::kLlama, .mlp_bias = true}), plain + 2 * 3);
  EXPECT_EQ(count({.family = ModelFamily::kQwen2}), plain + 2 * 3);
  EXPECT_EQ(count({.family = ModelFamily::kQwen3}), plain + 2 * 2);
}

TEST_F(ModelTensorsTest, NamesEveryMisfit) {
  const auto checkpoint = Write({}, [](auto& tensors) {
    Named(tensors, "model.layers.0.mlp.up_proj.weight").shape = {48, 80};
    Named(tensors, "model.norm.weight").name = "model.norm_weight";
  });
  EXPECT_THAT(ValidateTensors(*checkpoint, config_),
              FailsWith(kInvalid, AllOf(HasSubstr(dir_.path()), HasSubstr("'model.layers.0.mlp.up_proj.weight' in "),
                                        HasSubstr("has shape [48, 80] instead of [80, 48]"),
                                        HasSubstr("tensor 'model.norm.weight' of shape [48] is missing"))));
}

TEST_F(ModelTensorsTest, NamesAWrongDtype) {
  const auto checkpoint = Write({}, [](auto&) {});
  dir_.Write("model.safetensors",
             SafetensorsBytes(R"({"model.norm.weight":{"dtype":"I8","shape":[48],"data_offsets":[0,48]}})",
                              std::string(48, '\0')));
  EXPECT_THAT(ValidateTensors(*Checkpoint::Open(dir_.path()).value(), config_),
              FailsWith(kInvalid, AllOf(HasSubstr("'model.embed_tokens.weight' of shape [96, 48] is missing"),
                                        HasSubstr("more"))));
}

TEST_F(ModelTensorsTest, ExtraTensorsAreWarnings) {
  const auto checkpoint = Write({.tie_word_embeddings = true}, [](auto& tensors) {
    tensors.push_back({.name = "model.layers.0.self_attn.rotary_emb.inv_freq", .shape = {1}, .values = {1}});
    tensors.push_back({.name = "lm_head.weight", .shape = {1}, .values = {1}});
    tensors.push_back({.name = "extra", .shape = {1}, .values = {1}});
  });
  const auto warnings = ValidateTensors(*checkpoint, config_);
  ASSERT_THAT(warnings, IsOkStatus());
  EXPECT_THAT(*warnings, ElementsAre(AllOf(HasSubstr("'extra'"), HasSubstr("not used"))));
}

TEST(CheckFiniteTest, FindsTheFirstBadElementOfEveryDtype) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    const size_t width = DtypeBytes(dtype);
    // Largest finite, smallest subnormal, negative zero: all fine.
    const std::vector<uint32_t> fine = dtype == Dtype::kF32    ? std::vector<uint32_t>{0x7F7FFFFF, 1, 0x80000000}
                                       : dtype == Dtype::kBf16 ? std::vector<uint32_t>{0x7F7F, 1, 0x8000}
                                                               : std::vector<uint32_t>{0x7BFF, 1, 0x8000};
    const std::vector<uint32_t> bad = dtype == Dtype::kF32
                                          ? std::vector<uint32_t>{0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001}
                                      : dtype == Dtype::kBf16 ? std::vector<uint32_t>{0x7F80, 0xFF80, 0x7FC0, 0x7F81}
                                                              : std::vector<uint32_t>{0x7C00, 0xFC00, 0x7E00, 0x7C01};
    for (const size_t count : {1u, 1023u, 1024u, 1025u, 5000u}) {
      std::vector<uint8_t> bytes(count * width + 1);
      uint8_t* const data = bytes.data() + 1;  // unaligned, as in a file
      for (size_t i = 0; i < count; ++i) std::memcpy(data + i * width, &fine[i % fine.size()], width);
      const TensorDtype stored = dtype == Dtype::kF32    ? TensorDtype::kF32
                                 : dtype == Dtype::kBf16 ? TensorDtype::kBf16
                                                         : TensorDtype::kF16;
      const TensorView view{.name = "w", .dtype = stored, .shape = {}, .bytes = {data, count * width}};
      EXPECT_THAT(CheckFinite(view, "f"), IsOkStatus());
      for (const uint32_t value : bad) {
        const size_t at = count - 1;
        std::memcpy(data + at * width, &value, width);
        EXPECT_THAT(
            CheckFinite(view, "f"),
            FailsWith(kInvalid, AllOf(HasSubstr("f: tensor 'w'"), testing::EndsWith(absl::StrCat("element ", at)))));
        std::memcpy(data + at * width, &fine[0], width);
      }
    }
  }
}

TEST_F(ModelTensorsTest, NamesTheFirstTensorThatIsNotFinite) {
  const auto checkpoint = Write({.storage = Dtype::kF32}, [](auto& tensors) {
    Named(tensors, "model.layers.0.mlp.down_proj.weight").values[77] = std::numeric_limits<float>::quiet_NaN();
    Named(tensors, "lm_head.weight").values[0] = std::numeric_limits<float>::infinity();
  });
  EXPECT_THAT(CheckWeightsFinite(*checkpoint, config_, 2),
              FailsWith(kInvalid, AllOf(HasSubstr("model.safetensors: "),
                                        HasSubstr("'model.layers.0.mlp.down_proj.weight'"), HasSubstr("element 77"))));
}

}  // namespace
}  // namespace winnow
