#include "cmd/up/advice.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using testing::HasSubstr;

TEST(Advice, NamesTheOptionsThatMatter) {
  EXPECT_THAT(AdviceFor("memory does not fit: 102400.00 GiB for KV blocks of 1 GiB", 0), HasSubstr("--cache-memory"));
  EXPECT_THAT(AdviceFor("--http: address 127.0.0.1:8000 is in use", 0), HasSubstr("--http"));
  EXPECT_THAT(AdviceFor("model.safetensors: tensor x is missing", 0), HasSubstr("files of the model"));
  EXPECT_THAT(AdviceFor("the GPU does not answer", 0), HasSubstr("--device=cpu"));
}

TEST(Advice, AKilledProcessMayHaveHadTooMuchMemory) {
  EXPECT_THAT(AdviceFor("loading", SIGKILL), HasSubstr("want of memory"));
}

TEST(Advice, OtherwiseSaysWhereToLook) {
  EXPECT_THAT(AdviceFor("", 0), HasSubstr("winnow doctor"));
  EXPECT_THAT(AdviceFor("who knows", SIGSEGV), HasSubstr("--log-level=debug"));
}

}  // namespace
}  // namespace winnow
