#include "common/model/rope_config.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

struct Parsed {
  absl::StatusOr<RopeConfig> rope;
  std::vector<std::string> warnings;
};

Parsed Parse(const std::string& json, int64_t max_position_embeddings = 4096) {
  const nlohmann::json root = ParseJsonObject(json, "config.json").value();
  Parsed parsed{RopeConfig{}, {}};
  parsed.rope = ParseRopeConfig(JsonFields(root, "config.json"), max_position_embeddings, parsed.warnings);
  return parsed;
}

TEST(RopeConfigTest, PlainRopeIsTheDefault) {
  for (const char* json :
       {"{}", R"({"rope_scaling":null})", R"({"rope_scaling":{}})", R"({"rope_parameters":{"rope_type":"default"}})",
        R"({"rope_scaling":{"type":"default"}})"}) {
    const Parsed parsed = Parse(json);
    ASSERT_THAT(parsed.rope, IsOkStatus()) << json;
    EXPECT_EQ(*parsed.rope, RopeConfig{}) << json;
  }
}

TEST(RopeConfigTest, OldAndNewFieldsMeanTheSame) {
  const Parsed old_names = Parse(R"({"rope_theta":5e5,"rope_scaling":{"type":"linear","factor":2}})");
  const Parsed mid_names = Parse(R"({"rope_theta":5e5,"rope_scaling":{"rope_type":"linear","factor":2.0}})");
  const Parsed new_names = Parse(R"({"rope_parameters":{"rope_type":"linear","factor":2.0,"rope_theta":500000}})");
  ASSERT_THAT(old_names.rope, IsOkStatus());
  EXPECT_EQ(old_names.rope->type, RopeType::kLinear);
  EXPECT_EQ(old_names.rope->theta, 5e5);
  EXPECT_EQ(old_names.rope->factor, 2);
  EXPECT_EQ(*old_names.rope, *mid_names.rope);
  EXPECT_EQ(*old_names.rope, *new_names.rope);
}

TEST(RopeConfigTest, PrecedenceIsThatOfTransformers) {
  const Parsed both = Parse(
      R"({"rope_theta":7,"rope_scaling":{"type":"linear","rope_type":"dynamic","factor":2,"rope_theta":9},
          "rope_parameters":{"rope_type":"linear","factor":3}})");
  ASSERT_THAT(both.rope, IsOkStatus());
  EXPECT_EQ(both.rope->type, RopeType::kDynamic);
  EXPECT_EQ(both.rope->factor, 2);
  EXPECT_EQ(both.rope->theta, 9);
}

TEST(RopeConfigTest, Llama3NeedsItsFields) {
  const std::string full =
      R"({"rope_parameters":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,
          "original_max_position_embeddings":8192}})";
  const Parsed parsed = Parse(full);
  ASSERT_THAT(parsed.rope, IsOkStatus());
  EXPECT_EQ(parsed.rope->original_max_position_embeddings, 8192);
  EXPECT_THAT(parsed.warnings, IsEmpty());
  EXPECT_THAT(Parse(R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1}})").rope,
              FailsWith(kInvalid, HasSubstr("config.json: rope_scaling.high_freq_factor is missing")));
  EXPECT_THAT(
      Parse(R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4}})").rope,
      FailsWith(kInvalid, HasSubstr("must be above low_freq_factor")));
}

TEST(RopeConfigTest, YarnDefaultsAndOptions) {
  const Parsed plain = Parse(R"({"rope_scaling":{"type":"yarn","factor":4.0}})", 32768);
  ASSERT_THAT(plain.rope, IsOkStatus());
  EXPECT_EQ(plain.rope->original_max_position_embeddings, 32768);
  EXPECT_EQ(plain.rope->beta_fast, 32);
  EXPECT_EQ(plain.rope->beta_slow, 1);
  EXPECT_TRUE(plain.rope->truncate);
  EXPECT_EQ(plain.rope->attention_factor, std::nullopt);

  const Parsed full = Parse(
      R"({"rope_parameters":{"rope_type":"yarn","factor":16,"original_max_position_embeddings":256,"attention_factor":0.5,
          "mscale":1,"mscale_all_dim":0.8,"beta_fast":16,"beta_slow":2,"truncate":false}})");
  ASSERT_THAT(full.rope, IsOkStatus());
  EXPECT_EQ(full.rope->attention_factor, 0.5);
  EXPECT_EQ(full.rope->mscale, 1);
  EXPECT_EQ(full.rope->mscale_all_dim, 0.8);
  EXPECT_EQ(full.rope->beta_fast, 16);
  EXPECT_EQ(full.rope->beta_slow, 2);
  EXPECT_FALSE(full.rope->truncate);

  const Parsed outer = Parse(R"({"original_max_position_embeddings":512,"rope_scaling":{"type":"yarn","factor":null,
                                 "original_max_position_embeddings":64}})");
  ASSERT_THAT(outer.rope, IsOkStatus());
  EXPECT_EQ(outer.rope->original_max_position_embeddings, 512);
  EXPECT_EQ(outer.rope->factor, 8);  // 4096 / 512
}

TEST(RopeConfigTest, LongRopeHasTwoListsOfDivisors) {
  const std::string lists = R"("short_factor":[1,1.5],"long_factor":[2,40])";
  const auto parse = [&](const std::string& outer, const std::string& inner) {
    return Parse("{" + outer + "\"rope_scaling\":{" + inner + lists + "}}", 131072).rope;
  };
  const auto phi = parse(R"("original_max_position_embeddings":4096,)", R"("type":"longrope",)");
  ASSERT_THAT(phi, IsOkStatus());
  EXPECT_EQ(phi->type, RopeType::kLongRope);
  EXPECT_THAT(phi->short_factors, ElementsAre(1, 1.5));
  EXPECT_THAT(phi->long_factors, ElementsAre(2, 40));
  EXPECT_EQ(phi->original_max_position_embeddings, 4096);
  EXPECT_EQ(phi->factor, 32) << "by how much the context grew";
  EXPECT_TRUE(phi->beyond_original);
  EXPECT_EQ(*phi, *parse("", R"("rope_type":"su","original_max_position_embeddings":4096,)"));
  const auto given =
      parse(R"("original_max_position_embeddings":4096,)", R"("type":"longrope","factor":8,"attention_factor":1.25,)");
  ASSERT_THAT(given, IsOkStatus());
  EXPECT_EQ(given->factor, 8);
  EXPECT_EQ(given->attention_factor, 1.25);
  EXPECT_FALSE(parse(R"("original_max_position_embeddings":131072,)", R"("type":"longrope",)")->beyond_original);
  EXPECT_THAT(parse("", R"("type":"longrope",)"),
              FailsWith(kInvalid, HasSubstr("rope_scaling.original_max_position_embeddings is missing")));
  EXPECT_THAT(
      Parse(R"({"original_max_position_embeddings":64,"rope_scaling":{"type":"longrope","short_factor":[1]}})").rope,
      FailsWith(kInvalid, HasSubstr("rope_scaling.long_factor is missing")));
  EXPECT_THAT(
      Parse(R"({"original_max_position_embeddings":64,"rope_scaling":{"type":"longrope","short_factor":[0]}})").rope,
      FailsWith(kInvalid, HasSubstr("rope_scaling.short_factor holds 0; it must hold numbers from")));
}

TEST(RopeConfigTest, RefusesWhatItCannotCompute) {
  const auto refused = [](const std::string& json, const std::string& message) {
    EXPECT_THAT(Parse(json).rope, FailsWith(kInvalid, AllOf(HasSubstr("config.json: "), HasSubstr(message)))) << json;
  };
  refused(R"({"rope_scaling":{"rope_type":"proportional","factor":2}})",
          "rope_scaling.rope_type is 'proportional'; supported are");
  refused(R"({"rope_scaling":{"rope_type":"default","mrope_section":[16,24,24]}})",
          "rope_scaling.mrope_section is [16,24,24], which is not supported");
  refused(R"({"rope_parameters":{"type":"yarn","factor":2,"llama_4_scaling_beta":0.1}})",
          "rope_parameters.llama_4_scaling_beta is 0.1, which is not supported");
  refused(R"({"rope_scaling":{"type":"linear"}})", "rope_scaling.factor is missing");
  refused(R"({"rope_scaling":{"type":"linear","factor":0}})", "rope_scaling.factor is 0");
  refused(R"({"rope_scaling":{"type":"linear","factor":"2"}})", "rope_scaling.factor must be a number, not string");
  refused(R"({"rope_scaling":{"type":4}})", "rope_scaling.type must be a string, not number");
  refused(R"({"rope_scaling":"linear"})", "rope_scaling must be an object, not string");
  refused(R"({"rope_theta":0})", "rope_theta is 0");
  refused(R"({"rope_theta":true})", "rope_theta must be a number");
  refused(R"({"partial_rotary_factor":0.5})", "partial_rotary_factor is 0.5; only 1");
  refused(R"({"rope_parameters":{"partial_rotary_factor":0.25}})", "rope_parameters.partial_rotary_factor is 0.25");
  refused(R"({"rope_parameters":{"full_attention":{"rope_type":"ntk"}}})",
          "rope_parameters.full_attention.rope_type is 'ntk'");
  refused(R"({"rope_scaling":{"type":"yarn","factor":4,"truncate":1}})", "rope_scaling.truncate must be true or false");
}

TEST(RopeConfigTest, WarnsOfUnknownFields) {
  EXPECT_THAT(Parse(R"({"rope_scaling":{"type":"linear","factor":2,"finetuned":true}})").warnings,
              ElementsAre(HasSubstr("rope_scaling.'finetuned'")));
}

}  // namespace
}  // namespace winnow
