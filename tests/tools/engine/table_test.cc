#include "tools/engine/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

using testing::HasSubstr;
using testing::Not;

class TableTest : public testing::Test {
 protected:
  QualityFile Quality(const std::string& text) {
    const std::string path = directory_.path() + "/summary.csv";
    std::ofstream(path) << text;
    return QualityFile::Load(path).value();
  }
  TempDir directory_;
};

constexpr const char* kSummary =
    "mode,task,spec,budget,prompts,token_share,mass_mean\n"
    "forced,needle,quest,2048,3,1,0.9\n"
    "forced,all,dense,0,12,0.979,1\n"
    "forced,all,quest,2048,12,0.981,0.872\n"
    "forced,all,\"winnow,scorer=two-stage\",2048,12,0.978,0.919\n";

TEST_F(TableTest, QualityIsThatOfAllTasksByNameAndBudget) {
  const QualityFile file = Quality(kSummary);
  EXPECT_DOUBLE_EQ(file.Find("quest", 2048)->captured_mass, 0.872);
  EXPECT_DOUBLE_EQ(file.Find("winnow,scorer=two-stage", 2048)->tokens_right, 0.978);
  EXPECT_DOUBLE_EQ(file.Find("quest", 2048)->dense_tokens_right, 0.979);
  EXPECT_TRUE(file.Find("dense", 2048).has_value());
  EXPECT_FALSE(file.Find("quest", 1024).has_value());
}

TEST_F(TableTest, AFileThatIsNoSummaryIsRefused) {
  const std::string path = directory_.path() + "/other.csv";
  std::ofstream(path) << "a,b\n1,2\n";
  EXPECT_THAT(QualityFile::Load(path), FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("no summary.csv")));
  EXPECT_THAT(QualityFile::Load(path + "x"), FailsWith(absl::StatusCode::kNotFound, HasSubstr("cannot read")));
}

TEST_F(TableTest, SaysWhatWasMeasuredAndWhyTheRestWasNot) {
  TableLine quest{.of = {.preset = "quest", .placement = KvPlacement::kColocated, .spec = {}, .batch = 8}};
  DecodeMeasurement measured{.of = quest.of, .num_ranks = 2, .num_gpus = 4, .step_us = 10000, .floor_us = 6600};
  measured.overlap = 0.75;
  measured.is_tuned = true;
  quest.measured = measured;
  const TableLine lserve{.of = {.preset = "lserve", .placement = KvPlacement::kDisaggregated, .spec = {}, .batch = 8},
                         .why_not = "is not built"};
  const QualityFile quality = Quality(kSummary);
  const std::string table = DecodeTable({quest, lserve}, &quality, 2048);
  EXPECT_THAT(table, HasSubstr("10.00"));   // ms
  EXPECT_THAT(table, HasSubstr(" 400 "));   // tokens/s of each inference GPU: 8 / 10 ms over two
  EXPECT_THAT(table, HasSubstr(" 200 "));   // of each GPU
  EXPECT_THAT(table, HasSubstr(" 0.66 "));  // of the floor
  EXPECT_THAT(table, HasSubstr("0.872  0.981"));
  EXPECT_THAT(table, HasSubstr("is not built"));
  EXPECT_THAT(table, Not(HasSubstr("!")));
}

}  // namespace
}  // namespace winnow
