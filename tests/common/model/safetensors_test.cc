#include "common/model/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "common/base/status.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

TEST(SafetensorsTest, ReadsWhatWasWritten) {
  const TempDir dir;
  const std::string path =
      dir.Write("a.safetensors", SafetensorsBytes(std::vector<TensorToWrite>{
                                     {.name = "w", .dtype = Dtype::kF32, .shape = {2, 3}, .values = {1, 2, 3, 4, 5, 6}},
                                     {.name = "b", .dtype = Dtype::kBf16, .shape = {2}, .values = {-1.5f, 0.25f}},
                                     {.name = "scalar", .dtype = Dtype::kF16, .shape = {}, .values = {2.0f}},
                                     {.name = "empty", .dtype = Dtype::kF16, .shape = {0, 5}, .values = {}}}));
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_THAT(file, IsOkStatus());
  ASSERT_EQ(file->entries().size(), 4u);
  const TensorView w = file->View(file->entries()[0]);
  EXPECT_EQ(w.name, "w");
  EXPECT_THAT(w.shape, ElementsAre(2, 3));
  float values[6];
  ASSERT_EQ(w.bytes.size(), sizeof(values));
  std::memcpy(values, w.bytes.data(), sizeof(values));
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(file->View(file->entries()[1]).bytes, ElementsAre(0xC0, 0xBF, 0x80, 0x3E));  // bf16 -1.5, 0.25
}

TEST(SafetensorsTest, ErrorsNameTheFile) {
  const TempDir dir;
  EXPECT_THAT(SafetensorsFile::Open(dir.path() + "/none"),
              FailsWith(absl::StatusCode::kNotFound, HasSubstr(dir.path() + "/none")));
  EXPECT_THAT(SafetensorsFile::Open(dir.path()), FailsWith(kInvalid, HasSubstr("not a regular file")));
  ASSERT_EQ(::mkfifo((dir.path() + "/fifo").c_str(), 0600), 0);
  EXPECT_THAT(SafetensorsFile::Open(dir.path() + "/fifo"), FailsWith(kInvalid, HasSubstr("not a regular file")));
  EXPECT_THAT(SafetensorsFile::Open(dir.Write("empty", "")),
              FailsWith(kInvalid, HasSubstr("/empty: the file is empty")));
  EXPECT_THAT(SafetensorsFile::Open(dir.Write("short", "1234567")),
              FailsWith(kInvalid, AllOf(HasSubstr("/short: "), HasSubstr("7 bytes"))));
}

TEST(SafetensorsTest, ChecksTheHeaderLength) {
  std::string file = SafetensorsBytes("{}", "");
  EXPECT_THAT(ParseSafetensors(Bytes(file)), IsOkStatus());
  const auto with_length = [&file](uint64_t length) {
    std::memcpy(file.data(), &length, sizeof(length));
    return ParseSafetensors(Bytes(file));
  };
  EXPECT_THAT(with_length(3), FailsWith(kInvalid, HasSubstr("header length is 3, but only 2")));
  EXPECT_THAT(with_length(100'000'001), FailsWith(kInvalid, HasSubstr("limit of 100000000")));
  EXPECT_THAT(with_length(~uint64_t{0}), FailsWith(kInvalid, HasSubstr("limit of 100000000")));
  EXPECT_THAT(with_length(0), FailsWith(kInvalid, HasSubstr("does not begin with '{'")));
}

struct BadHeader {
  const char* name;
  std::string header;
  uint64_t data_bytes;
  const char* message;
};

class BadHeaderTest : public testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaderTest, IsRefused) {
  EXPECT_THAT(ParseSafetensorsHeader(GetParam().header, GetParam().data_bytes),
              FailsWith(kInvalid, HasSubstr(GetParam().message)));
}

std::string One(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return absl::StrCat("{\"t\":{\"dtype\":", AbslSv(dtype), ",\"shape\":", AbslSv(shape),
                      ",\"data_offsets\":", AbslSv(offsets), "}}");
}

constexpr const char* kF32x2 = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";

INSTANTIATE_TEST_SUITE_P(
    All, BadHeaderTest,
    testing::Values(
        BadHeader{"LeadingSpace", " {}", 0, "does not begin with '{'"},
        BadHeader{"Array", "[]", 0, "does not begin with '{'"}, BadHeader{"Truncated", "{\"t\":", 0, "malformed JSON"},
        BadHeader{"TrailingText", "{}x", 0, "malformed JSON"},
        BadHeader{"InvalidUtf8", "{\"\xff\":1}", 0, "malformed JSON"},
        BadHeader{"DuplicateName", absl::StrCat("{\"t\":", kF32x2, ",\"t\":", kF32x2, "}"), 8,
                  "the name 't' appears twice"},
        BadHeader{"DuplicateField", R"({"t":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8,
                  "'t' has dtype twice"},
        BadHeader{"UnknownField", R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1}})", 8,
                  "unknown field 'extra'"},
        BadHeader{"MissingShape", R"({"t":{"dtype":"F32","data_offsets":[0,8]}})", 8, "'t' lacks shape"},
        BadHeader{"UnknownDtype", One("\"F31\"", "[2]", "[0,8]"), 8, "unknown dtype 'F31'"},
        BadHeader{"DtypeNumber", One("32", "[2]", "[0,8]"), 8, "dtype must not be a number"},
        BadHeader{"NegativeDim", One("\"F32\"", "[-2]", "[0,8]"), 8, "shape holds a negative number"},
        BadHeader{"FractionalDim", One("\"F32\"", "[2.0]", "[0,8]"), 8, "not an integer"},
        BadHeader{"HugeDim", One("\"F32\"", "[99999999999999999999]", "[0,8]"), 8, "not an integer"},
        BadHeader{"NestedShape", One("\"F32\"", "[[2]]", "[0,8]"), 8, "shape holds an array"},
        BadHeader{"ShapeString", One("\"F32\"", "\"2\"", "[0,8]"), 8, "shape must not be a string"},
        BadHeader{"NullShape", One("\"F32\"", "null", "[0,8]"), 8, "shape must not be null"},
        BadHeader{"ProductOverflow", One("\"F32\"", "[4294967296,4294967296]", "[0,8]"), 8, "overflows"},
        BadHeader{"ProductOverflowsToRightSize", One("\"F32\"", "[4611686018427387906]", "[0,8]"), 8, "overflows"},
        BadHeader{"WrongSize", One("\"F32\"", "[3]", "[0,8]"), 8, "needs 12 bytes, but data_offsets hold 8"},
        BadHeader{"OneOffset", One("\"F32\"", "[2]", "[0]"), 8, "data_offsets must be 2 numbers"},
        BadHeader{"ThreeOffsets", One("\"F32\"", "[2]", "[0,8,9]"), 8, "more than 2 numbers"},
        BadHeader{"OffsetsReversed", One("\"F32\"", "[2]", "[8,0]"), 8, "do not lie inside"},
        BadHeader{"BeyondEnd", One("\"F32\"", "[2]", "[4,12]"), 8, "do not lie inside the 8 data bytes"},
        BadHeader{"HoleAtStart", One("\"F32\"", "[2]", "[4,12]"), 12,
                  "bytes [0, 4] before tensor 't' belong to no tensor"},
        BadHeader{"HoleAtEnd", One("\"F32\"", "[2]", "[0,8]"), 12, "cover 8 bytes, but the file has 12"},
        BadHeader{"Overlap",
                  absl::StrCat("{\"a\":", kF32x2, ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}"),
                  12, "tensor 'b' at bytes [4, 12] overlaps tensor 'a'"},
        BadHeader{"MetadataList", R"({"__metadata__":["pt"]})", 0, "value of '__metadata__' must be an object"},
        BadHeader{"MetadataNumber", R"({"__metadata__":{"format":1}})", 0, "__metadata__ must map strings to strings"},
        BadHeader{"MetadataNested", R"({"__metadata__":{"a":{"b":"c"}}})", 0,
                  "__metadata__ must map strings to strings"},
        BadHeader{"MetadataDuplicate", R"({"__metadata__":{"a":"b","a":"c"}})", 0, "the key 'a' twice"},
        BadHeader{"TensorNumber", R"({"t":1})", 0, "value of 't' must be an object"},
        BadHeader{"DeepNesting", "{\"t\":" + std::string(100000, '['), 0, "value of 't' must be an object"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(SafetensorsHeaderTest, EntriesComeInDataOrder) {
  const auto entries = ParseSafetensorsHeader(
      R"({"late":{"dtype":"U8","shape":[3],"data_offsets":[2,5]},"early":{"dtype":"I16","shape":[1],"data_offsets":[0,2]}}   )",
      5);
  ASSERT_THAT(entries, IsOkStatus());
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].name, "early");
  EXPECT_EQ((*entries)[1].name, "late");
}

TEST(SafetensorsHeaderTest, NamesInErrorsAreEscapedAndShortened) {
  EXPECT_EQ(QuotedName("a\nb"), "'a\\nb'");
  EXPECT_EQ(QuotedName(std::string(1000, 'x')), "'" + std::string(120, 'x') + "...'");
}

}  // namespace
}  // namespace winnow
