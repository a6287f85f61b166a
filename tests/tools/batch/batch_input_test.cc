#include "tools/batch/batch_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

using testing::HasSubstr;

class BatchInputTest : public testing::Test {
 protected:
  absl::StatusOr<BatchInput> Open(const std::string& text) {
    std::ofstream(path_) << text;
    return BatchInput::Open(path_);
  }
  void ExpectRefused(const std::string& text, const std::string& reason) {
    EXPECT_THAT(Open(text), FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(path_ + reason))) << text;
  }

  const TempDir folder_;
  const std::string path_ = folder_.path() + "/in.jsonl";
};

TEST_F(BatchInputTest, GivesEachRequestByItsPlace) {
  absl::StatusOr<BatchInput> input = Open(
      "{\"custom_id\": \"first\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"z\": 1, \"a\": 2}}\n"
      "\n"
      "{\"custom_id\": \"second\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {}}");
  ASSERT_THAT(input, IsOkStatus());
  ASSERT_EQ(input->size(), 2u);
  EXPECT_EQ(input->custom_id(1), "second");
  EXPECT_EQ(input->line_number(1), 3u);
  // In any order.
  EXPECT_EQ(input->Read(1)->url, "/v1/chat/completions");
  const absl::StatusOr<BatchRequest> first = input->Read(0);
  ASSERT_THAT(first, IsOkStatus());
  EXPECT_EQ(first->custom_id, "first");
  EXPECT_EQ(first->url, "/v1/completions");
  EXPECT_EQ(first->body, "{\"z\":1,\"a\":2}") << "chat templates see keys in the order of the client";
}

TEST_F(BatchInputTest, NamesTheLineThatIsWrong) {
  const std::string good = R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}})";
  ExpectRefused("", " has no requests");
  ExpectRefused("\n\n", " has no requests");
  ExpectRefused(good + "\nnonsense", ":2: no JSON object");
  ExpectRefused(good + "\n[]", ":2: no JSON object");
  ExpectRefused(good + "\n\n" + good, ":3: custom_id \"a\" is that of line 1, too");
  ExpectRefused(R"({"method": "POST", "url": "/v1/completions", "body": {}})", ":1: \"custom_id\" is missing");
  ExpectRefused(R"({"custom_id": 7, "method": "POST", "url": "/v1/completions", "body": {}})",
                ":1: \"custom_id\" is no text");
  ExpectRefused(R"({"custom_id": "a", "method": "GET", "url": "/v1/models", "body": {}})",
                ":1: \"method\" is \"GET\", not \"POST\"");
  ExpectRefused(R"({"custom_id": "a", "method": "POST", "url": "http://x/v1/completions", "body": {}})", ":1: \"url\"");
  ExpectRefused(R"({"custom_id": "a", "method": "POST", "url": "/v1/completions"})", ":1: \"body\" is missing");
  ExpectRefused(R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}, "metadata": 1})",
                ":1: unknown field \"metadata\"");
  ExpectRefused(R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"stream": true}})",
                ":1: \"body.stream\" is true");
  EXPECT_THAT(BatchInput::Open("/no/such/file"),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("/no/such/file")));
}

TEST_F(BatchInputTest, NoticesThatTheFileHasChanged) {
  absl::StatusOr<BatchInput> input =
      Open(R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}})");
  ASSERT_THAT(input, IsOkStatus());
  std::ofstream(path_) << R"({"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {}})";
  EXPECT_THAT(input->Read(0), FailsWith(absl::StatusCode::kDataLoss, HasSubstr(path_ + ":1")));
}

}  // namespace
}  // namespace winnow
