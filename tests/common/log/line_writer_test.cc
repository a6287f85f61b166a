// A log on a disk that is full for a while.
#include "common/log/line_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

namespace winnow {
namespace {

class LineWriterTest : public testing::Test {
 protected:
  LineWriterTest() : fd_(mkstemp(path_)) {}
  ~LineWriterTest() override {
    close(fd_);
    unlink(path_);
  }

  std::string Text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  char path_[32] = "/tmp/line_writer_XXXXXX";
  const int fd_;
};

TEST_F(LineWriterTest, SaysHowMuchIsMissingOnceItCanWriteAgain) {
  LineWriter writer(fd_);
  writer.Write("one\n");
  const int file = dup(fd_), full = open("/dev/full", O_WRONLY);
  dup2(full, fd_);
  writer.Write("two\n");
  writer.Write("three\n");
  dup2(file, fd_);
  writer.Write("four\n");
  writer.Write("five\n");
  EXPECT_EQ(Text(), "one\nwinnow: 10 bytes of the log are missing here: No space left on device\nfour\nfive\n");
  close(file);
  close(full);
}

TEST_F(LineWriterTest, EndsALineThatWasCutOff) {
  LineWriter writer(fd_);
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit{.rlim_cur = 6, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  writer.Write("one\ntwo\n");
  setrlimit(RLIMIT_FSIZE, &before);
  writer.Write("three\n");
  EXPECT_EQ(Text(), "one\ntw\nwinnow: 2 bytes of the log are missing here: File too large\nthree\n");
}

}  // namespace
}  // namespace winnow
