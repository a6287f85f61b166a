#include "common/config/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace winnow {
namespace {

using Kind = DeviceChoice::Kind;

TEST(DeviceChoice, NamesAKindAndAGpu) {
  EXPECT_EQ(ParseDeviceChoice("auto").value(), (DeviceChoice{Kind::kAuto, 0}));
  EXPECT_EQ(ParseDeviceChoice("cpu").value(), (DeviceChoice{Kind::kCpu, 0}));
  EXPECT_EQ(ParseDeviceChoice("cuda").value(), (DeviceChoice{Kind::kGpu, 0}));
  EXPECT_EQ(ParseDeviceChoice("cuda:3").value(), (DeviceChoice{Kind::kGpu, 3}));
  EXPECT_EQ(ParseDeviceChoice("auto:1").value(), (DeviceChoice{Kind::kAuto, 1}));
}

TEST(DeviceChoice, NamesSeveralGpus) {
  EXPECT_EQ(ParseDeviceChoice("cuda:0,1").value(), (DeviceChoice{Kind::kGpu, 0, {1}}));
  EXPECT_EQ(ParseDeviceChoice("cuda:0,cuda:1").value(), (DeviceChoice{Kind::kGpu, 0, {1}}));
  EXPECT_EQ(ParseDeviceChoice("auto:3,0,2").value(), (DeviceChoice{Kind::kAuto, 3, {0, 2}}));
  EXPECT_THAT(std::string(ParseDeviceChoice("cuda:1,0,1").status().message()), testing::HasSubstr("names GPU 1 twice"));
}

TEST(DeviceChoice, TextIsRead) {
  for (const char* text : {"auto", "cpu", "cuda", "cuda:3", "auto:63", "cuda:0,1", "cuda:2,3,0,1"}) {
    EXPECT_EQ(ToString(ParseDeviceChoice(text).value()), text);
  }
  EXPECT_EQ(ToString(ParseDeviceChoice("cuda:0").value()), "cuda");
}

TEST(DeviceChoice, RefusesEverythingElse) {
  for (const char* text : {"", "gpu", "CUDA", "cpu:1", "cpu,1", "cuda,1", "cuda:0,", "cuda:0,,1", "cuda:0,auto:1",
                           "cuda:0,x", "cuda:", "cuda:-1", "cuda:64", "cuda:1x", "cuda 1", ":1"}) {
    const absl::Status status = ParseDeviceChoice(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("is not auto, cpu or cuda")) << text;
  }
}

TEST(GpusOfRank, AreThoseThatAreNamedOrTheNextOnes) {
  const auto gpus = [](const char* text, int tensor_parallel, int rank, int num_ranks) {
    return GpusOfRank(ParseDeviceChoice(text).value(), tensor_parallel, rank, num_ranks).value();
  };
  EXPECT_EQ(gpus("cuda", 0, 0, 1), std::vector<int>({0}));
  EXPECT_EQ(gpus("cuda:1", 0, 2, 3), std::vector<int>({3}));
  EXPECT_EQ(gpus("cuda:2", 2, 0, 1), std::vector<int>({2, 3}));
  EXPECT_EQ(gpus("cuda", 2, 1, 2), std::vector<int>({2, 3}));
  EXPECT_EQ(gpus("cuda:3,1", 0, 0, 1), std::vector<int>({3, 1}));
  EXPECT_EQ(gpus("cuda:0,1,2,3", 0, 1, 2), std::vector<int>({2, 3}));
  EXPECT_EQ(gpus("cuda:0,1,2,3", 1, 2, 4), std::vector<int>({2}));
}

TEST(GpusOfRank, SaysWhatDoesNotGoUp) {
  const auto why = [](const char* text, int tensor_parallel, int num_ranks) {
    return std::string(GpusOfRank(ParseDeviceChoice(text).value(), tensor_parallel, 0, num_ranks).status().message());
  };
  EXPECT_THAT(why("cuda", 3, 1), testing::HasSubstr("1, 2 or 4 GPUs (--tensor-parallel), not by 3"));
  EXPECT_THAT(why("cuda:0,1", 4, 1),
              testing::HasSubstr("cuda:0,1 names 2 GPUs, and 1 rank with --tensor-parallel=4 take 4"));
  EXPECT_THAT(why("cuda:0,1,2", 0, 2), testing::HasSubstr("2 ranks with --tensor-parallel=1 take 2"));
}

}  // namespace
}  // namespace winnow
