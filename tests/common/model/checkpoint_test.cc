#include "common/model/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string OneTensorFile(const std::string& name, float value) {
  return SafetensorsBytes(std::vector<TensorToWrite>{{.name = name, .shape = {1}, .values = {value}}});
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() { dir_.Write("config.json", "{}"); }
  void WriteIndex(const std::string& weight_map) {
    dir_.Write("model.safetensors.index.json", absl::StrCat("{\"weight_map\":", weight_map, "}"));
  }
  TempDir dir_;
};

TEST_F(CheckpointTest, OpensOneFile) {
  dir_.Write("model.safetensors", OneTensorFile("a", 1));
  const auto checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_THAT(checkpoint, IsOkStatus());
  EXPECT_THAT((*checkpoint)->names(), ElementsAre("a"));
  EXPECT_EQ((*checkpoint)->total_bytes(), 4u);
  EXPECT_THAT((*checkpoint)->Find("a"), IsOkStatus());
  EXPECT_THAT((*checkpoint)->Find("b"), FailsWith(absl::StatusCode::kNotFound, HasSubstr("no tensor 'b'")));
}

TEST_F(CheckpointTest, OpensIndexedShards) {
  dir_.Write("x.safetensors", OneTensorFile("a", 1));
  dir_.Write("y.safetensors", OneTensorFile("b", 2));
  WriteIndex(R"({"a":"x.safetensors","b":"y.safetensors"})");
  const auto checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_THAT(checkpoint, IsOkStatus());
  EXPECT_THAT((*checkpoint)->names(), ElementsAre("a", "b"));
  EXPECT_EQ((*checkpoint)->FileOf("b"), dir_.path() + "/y.safetensors");
}

TEST_F(CheckpointTest, OpensShardsWithoutAnIndex) {
  dir_.Write("model-00001-of-00002.safetensors", OneTensorFile("a", 1));
  dir_.Write("model-00002-of-00002.safetensors", OneTensorFile("b", 2));
  const auto checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_THAT(checkpoint, IsOkStatus());
  EXPECT_THAT((*checkpoint)->names(), ElementsAre("a", "b"));
}

TEST_F(CheckpointTest, NoticesAMissingShard) {
  dir_.Write("model-00001-of-00002.safetensors", OneTensorFile("a", 1));
  EXPECT_THAT(Checkpoint::Open(dir_.path()), FailsWith(absl::StatusCode::kNotFound, HasSubstr("1 of 2")));
}

TEST_F(CheckpointTest, RefusesATensorInTwoShards) {
  dir_.Write("model-00001-of-00002.safetensors", OneTensorFile("a", 1));
  dir_.Write("model-00002-of-00002.safetensors", OneTensorFile("a", 2));
  EXPECT_THAT(
      Checkpoint::Open(dir_.path()),
      FailsWith(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("tensor 'a' is also in"), HasSubstr("00002-of"))));
}

TEST_F(CheckpointTest, RefusesAnIndexThatDoesNotFit) {
  dir_.Write("x.safetensors", OneTensorFile("a", 1));
  WriteIndex(R"({"b":"x.safetensors"})");
  EXPECT_THAT(Checkpoint::Open(dir_.path()),
              FailsWith(absl::StatusCode::kNotFound, HasSubstr("x.safetensors holds tensor 'b'")));
  WriteIndex(R"({"a":"gone.safetensors"})");
  EXPECT_THAT(Checkpoint::Open(dir_.path()), FailsWith(absl::StatusCode::kNotFound, HasSubstr("gone.safetensors")));
  WriteIndex(R"({"a":1})");
  EXPECT_THAT(Checkpoint::Open(dir_.path()),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("must be a string")));
  WriteIndex("[]");
  EXPECT_THAT(Checkpoint::Open(dir_.path()), FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("weight_map")));
}

TEST_F(CheckpointTest, TheIndexCannotLeaveTheDirectory) {
  std::filesystem::create_directory(dir_.path() + "/sub");
  dir_.Write("secret.safetensors", OneTensorFile("a", 1));
  dir_.Write("sub/config.json", "{}");
  for (const char* name : {"../secret.safetensors", "..", "/etc/passwd", "", ".", "a/b", "x\\u0000.safetensors"}) {
    dir_.Write("sub/model.safetensors.index.json", absl::StrCat(R"({"weight_map":{"a":")", name, "\"}}"));
    EXPECT_THAT(Checkpoint::Open(dir_.path() + "/sub"),
                FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("not a plain name inside the directory")))
        << name;
  }
}

TEST_F(CheckpointTest, NamesWhatIsMissing) {
  EXPECT_THAT(Checkpoint::Open(dir_.path()), FailsWith(absl::StatusCode::kNotFound, HasSubstr("no model.safetensors")));
  EXPECT_THAT(Checkpoint::Open(dir_.path() + "/none"),
              FailsWith(absl::StatusCode::kNotFound, HasSubstr("not a directory")));
  std::filesystem::remove(dir_.path() + "/config.json");
  EXPECT_THAT(Checkpoint::Open(dir_.path()), FailsWith(absl::StatusCode::kNotFound, HasSubstr("config.json")));
}

TEST_F(CheckpointTest, ReleasedPagesCanBeReadAgain) {
  std::vector<float> values(20000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  dir_.Write("model.safetensors",
             SafetensorsBytes(std::vector<TensorToWrite>{{.name = "a", .shape = {values.size()}, .values = values}}));
  const auto checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_THAT(checkpoint, IsOkStatus());
  (*checkpoint)->ReleasePages("a");
  const TensorView view = (*checkpoint)->Find("a").value();
  std::vector<float> read(values.size());
  std::memcpy(read.data(), view.bytes.data(), view.bytes.size());
  EXPECT_EQ(read, values);
}

TEST_F(CheckpointTest, DigestSeesConfigNamesAndContents) {
  const auto digest = [this] { return Checkpoint::Open(dir_.path()).value()->Digest(); };
  dir_.Write("model.safetensors", OneTensorFile("a", 1));
  const std::string first = digest();
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ(digest(), first);
  dir_.Write("model.safetensors", OneTensorFile("a", 2));
  const std::string other_value = digest();
  EXPECT_NE(other_value, first);
  dir_.Write("model.safetensors", OneTensorFile("b", 1));
  EXPECT_NE(digest(), first);
  dir_.Write("model.safetensors", OneTensorFile("a", 1));
  EXPECT_EQ(digest(), first);
  dir_.Write("config.json", "{} ");
  EXPECT_NE(digest(), first);
}

}  // namespace
}  // namespace winnow
