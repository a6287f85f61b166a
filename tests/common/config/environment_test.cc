#include <cstdlib>
#include <fstream>

#include "common/config/load.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

struct Options {
  int threads = 1;
  int64_t memory_bytes = 0;

  void Declare(Fields& fields) {
    fields.Integer("max-threads", &threads, "Threads.", 1, 8);
    fields.Bytes("cache.memory", &memory_bytes, "Memory.");
  }
};

class EnvironmentTest : public testing::Test {
 protected:
  ~EnvironmentTest() override { ForgetEnvironment(Fields::Of(options_)); }

  Options options_;
};

TEST_F(EnvironmentTest, WinsOverFilesAndLosesToTheCommandLine) {
  TempDir folder;
  const std::string file = folder.path() + "/options.yaml";
  std::ofstream(file) << "max-threads: 2\ncache: {memory: 2MiB}\n";
  setenv("WINNOW_MAX_THREADS", "3", 1);
  setenv("WINNOW_CACHE_MEMORY", "3MiB", 1);
  const Fields fields = Fields::Of(options_);
  const std::vector<std::string> arguments = {"--max-threads=4", "--config=" + file};
  ASSERT_TRUE(LoadOptions(fields, arguments, Environment::kRead).ok());
  EXPECT_EQ(options_.threads, 4);
  EXPECT_EQ(options_.memory_bytes, 3 << 20);
}

TEST_F(EnvironmentTest, IsReadOnlyWhereItIsAskedFor) {
  setenv("WINNOW_MAX_THREADS", "3", 1);
  const Fields fields = Fields::Of(options_);
  ASSERT_TRUE(LoadOptions(fields, {}).ok());
  EXPECT_EQ(options_.threads, 1);
  ForgetEnvironment(fields);
  ASSERT_TRUE(LoadOptions(fields, {}, Environment::kRead).ok());
  EXPECT_EQ(options_.threads, 1);
}

TEST_F(EnvironmentTest, ErrorsNameTheVariable) {
  setenv("WINNOW_MAX_THREADS", "9", 1);
  EXPECT_EQ(LoadOptions(Fields::Of(options_), {}, Environment::kRead).status().message(),
            "environment variable WINNOW_MAX_THREADS: \"9\" is outside [1, 8]");
}

}  // namespace
}  // namespace winnow
