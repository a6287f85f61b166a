#include "tools/batch/batch_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/base/json.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

using testing::HasSubstr;

class BatchOutputTest : public testing::Test {
 protected:
  std::unique_ptr<BatchOutput> Open() {
    absl::StatusOr<std::unique_ptr<BatchOutput>> output = BatchOutput::Open(path_);
    EXPECT_THAT(output, IsOkStatus());
    return output.ok() ? *std::move(output) : nullptr;
  }
  std::string Text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TempDir folder_;
  const std::string path_ = folder_.path() + "/out.jsonl";
};

TEST_F(BatchOutputTest, WritesLinesOfTheFormat) {
  const auto output = Open();
  ASSERT_NE(output, nullptr);
  EXPECT_THAT(output->Write("good", BatchAnswer::Answered(200, R"({"id": "cmpl-1", "z": 1, "a": 2})")), IsOkStatus());
  EXPECT_EQ(Text(), R"({"id":"batch_req_good","custom_id":"good","response":{"status_code":200,"request_id":"cmpl-1",)"
                    R"("body":{"id":"cmpl-1","z":1,"a":2}},"error":null})"
                    "\n")
      << "at once, not when it is closed";
  EXPECT_THAT(output->Write("none", BatchAnswer::Missing("no answer: refused")), IsOkStatus());
  EXPECT_THAT(Text(), HasSubstr(R"("response":null,"error":{"code":"no_answer","message":"no answer: refused"}})"));
  // Bodies that are no JSON, not even text, are kept as far as JSON can.
  EXPECT_THAT(output->Write("odd", BatchAnswer::Answered(502, "bad \xff gateway")), IsOkStatus());
  EXPECT_THAT(Text(), HasSubstr("bad \xEF\xBF\xBD gateway"));
}

TEST_F(BatchOutputTest, KeepsWhatIsAnsweredAndDropsWhatIsSentAgain) {
  {
    const auto output = Open();
    ASSERT_NE(output, nullptr);
    EXPECT_THAT(output->Write("good", BatchAnswer::Answered(200, "{}")), IsOkStatus());
    EXPECT_FALSE(output->IsAnswered("good")) << "it says what was there when it was opened";
    EXPECT_THAT(output->Write("refused", BatchAnswer::Answered(400, "{}")), IsOkStatus());
    EXPECT_THAT(output->Write("silent", BatchAnswer::Missing("timeout")), IsOkStatus());
    EXPECT_THAT(output->Write("fine", BatchAnswer::Answered(200, "{}")), IsOkStatus());
  }
  // A program died while it wrote.
  std::ofstream(path_, std::ios::app) << R"({"id":"batch_req_torn","custom_id":"torn","respon)";
  const auto output = Open();
  ASSERT_NE(output, nullptr);
  for (const char* id : {"good", "fine"}) EXPECT_TRUE(output->IsAnswered(id)) << id;
  for (const char* id : {"refused", "silent", "torn", "other"}) EXPECT_FALSE(output->IsAnswered(id)) << id;
  EXPECT_THAT(Text(), testing::Not(HasSubstr("refused")));
  EXPECT_THAT(Text(), testing::Not(HasSubstr("torn")));
  EXPECT_THAT(output->Write("refused", BatchAnswer::Answered(200, "{}")), IsOkStatus());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1) << "no other file is left";
  const std::string text = Text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
}

TEST_F(BatchOutputTest, ACompleteLineWithoutItsLineFeedIsWrittenAgain) {
  std::ofstream(path_) << R"({"custom_id":"a","response":{"status_code":200,"body":{}},"error":null})";
  const auto output = Open();
  ASSERT_NE(output, nullptr);
  EXPECT_FALSE(output->IsAnswered("a"));
  EXPECT_EQ(Text(), "");
}

TEST_F(BatchOutputTest, LeavesOtherFilesAlone) {
  const std::string other = "a letter\nto a friend\n";
  std::ofstream(path_) << other;
  EXPECT_THAT(BatchOutput::Open(path_), FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(path_ + ":1")));
  EXPECT_EQ(Text(), other);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
  EXPECT_THAT(BatchOutput::Open("/no/such/folder/out.jsonl"),
              FailsWith(absl::StatusCode::kUnavailable, HasSubstr("/no/such/folder/out.jsonl")));
}

}  // namespace
}  // namespace winnow
