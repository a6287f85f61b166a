#include "tools/load/trace_file.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

namespace winnow {
namespace {

class TraceFile : public testing::Test {
 protected:
  std::string Write(const std::string& text) {
    std::string path = testing::TempDir() + "trace.jsonl";
    std::ofstream(path) << text;
    return path;
  }
};

TEST_F(TraceFile, LinesBecomeRequests) {
  const std::string path = Write(
      "{\"timestamp\": 2000, \"input_length\": 1100, \"output_length\": 52, \"hash_ids\": [46, 47, 48]}\n\n"
      "{\"timestamp\": 500, \"input_length\": 700, \"output_length\": 3, \"hash_ids\": [46]}\n"
      "{\"timestamp\": 3000, \"input_length\": 9, \"output_length\": 1}\n");
  const auto requests = ReadTrace(path, 2, 100);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 3u);
  EXPECT_DOUBLE_EQ((*requests)[0].at_s, 0.25);  // by time, twice as fast
  EXPECT_DOUBLE_EQ((*requests)[1].at_s, 1);
  EXPECT_EQ((*requests)[1].output_tokens, 52u);
  EXPECT_EQ((*requests)[1].prompt_tokens(), 1100u);
  ASSERT_EQ((*requests)[1].prompt.size(), 3u);
  EXPECT_EQ((*requests)[1].prompt[2].tokens, 76u);
  EXPECT_EQ((*requests)[0].prompt[0], (*requests)[1].prompt[0]);  // the same block
  EXPECT_EQ((*requests)[0].prompt_tokens(), 700u);                // what no id covers is there too
  EXPECT_EQ((*requests)[2].prompt_tokens(), 9u);
}

TEST_F(TraceFile, TheFirstSoMany) {
  const std::string path = Write(
      "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}\n"
      "not read\n");
  EXPECT_EQ(ReadTrace(path, 1, 1)->size(), 1u);
}

TEST_F(TraceFile, SaysWhereAndWhatIsWrong) {
  const auto message = [&](const std::string& line) {
    const auto requests =
        ReadTrace(Write("{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}\n" + line), 1, 9);
    return requests.ok() ? std::string("ok") : std::string(requests.status().message());
  };
  using testing::AllOf, testing::HasSubstr;
  EXPECT_THAT(message("{"), AllOf(HasSubstr("trace.jsonl:2"), HasSubstr("no JSON object")));
  EXPECT_THAT(message("{\"timestamp\": 1, \"output_length\": 1}"), HasSubstr("no \"input_length\""));
  EXPECT_THAT(message("{\"timestamp\": 1, \"input_length\": \"a\", \"output_length\": 1}"), HasSubstr("is no number"));
  EXPECT_THAT(message("{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}"), HasSubstr("timestamp"));
  EXPECT_THAT(message("{\"timestamp\": 1, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [1, 2, 3]}"),
              HasSubstr("more blocks"));
  EXPECT_THAT(message("{\"timestamp\": 1, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [1.5]}"),
              HasSubstr("no integer"));
  EXPECT_THAT(message("{\"timestamp\": 1, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [-1]}"),
              HasSubstr("\"hash_ids\" holds -1"));
  EXPECT_THAT(message("{\"timestamp\": 1, \"input_length\": 6.5, \"output_length\": 1}"),
              HasSubstr("\"input_length\" is 6.5, no whole number"));
  EXPECT_THAT(std::string(ReadTrace("/nowhere/trace", 1, 1).status().message()), HasSubstr("/nowhere/trace"));
  EXPECT_THAT(std::string(ReadTrace(Write("\n"), 1, 1).status().message()), HasSubstr("no request"));
}

}  // namespace
}  // namespace winnow
