#include "common/config/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace winnow {
namespace {

using Kind = DeviceChoice::Kind;

TEST(DeviceChoice, NamesAKindAndAGpu) {
  EXPECT_EQ(ParseDeviceChoice("auto").value(), (DeviceChoice{Kind::kAuto, 0}));
  EXPECT_EQ(ParseDeviceChoice("cpu").value(), (DeviceChoice{Kind::kCpu, 0}));
  EXPECT_EQ(ParseDeviceChoice("cuda").value(), (DeviceChoice{Kind::kCuda, 0}));
  EXPECT_EQ(ParseDeviceChoice("cuda:3").value(), (DeviceChoice{Kind::kCuda, 3}));
  EXPECT_EQ(ParseDeviceChoice("auto:1").value(), (DeviceChoice{Kind::kAuto, 1}));
}

TEST(DeviceChoice, TextIsRead) {
  for (const char* text : {"auto", "cpu", "cuda", "cuda:3", "auto:63"}) {
    EXPECT_EQ(ToString(ParseDeviceChoice(text).value()), text);
  }
  EXPECT_EQ(ToString(ParseDeviceChoice("cuda:0").value()), "cuda");
}

TEST(DeviceChoice, RefusesEverythingElse) {
  for (const char* text : {"", "gpu", "CUDA", "cpu:1", "cuda:", "cuda:-1", "cuda:64", "cuda:1x", "cuda 1", ":1"}) {
    const absl::Status status = ParseDeviceChoice(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("is not auto, cpu or cuda")) << text;
  }
}

}  // namespace
}  // namespace winnow
