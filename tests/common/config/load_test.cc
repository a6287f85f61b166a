#include "common/config/load.h"

#include <unistd.h>

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using testing::HasSubstr;

enum class Device { kAuto, kCpu };

struct InnerOptions {
  double pool_factor = 2;
  void Declare(Fields& fields) { fields.Number("pool_factor", &pool_factor, "Rows kept around.", 1, 64); }
};

struct Options {
  std::string model;
  bool fast = false;
  int threads = 2;
  uint32_t budget = 2048;
  int64_t memory_bytes = int64_t{2} << 30;
  std::chrono::microseconds lease{2'000'000};
  HostPort listen{"127.0.0.1", 8000};
  Device device = Device::kAuto;
  InnerOptions selection;

  void Declare(Fields& fields) {
    fields.Text("model", &model, "Folder of the model.");
    fields.Bool("fast", &fast, "Faster.");
    fields.Integer("threads", &threads, "Threads of the team.", 1, 64);
    fields.Integer("max-budget", &budget, "Rows.");
    fields.Bytes("memory", &memory_bytes, "Memory for blocks.", 1 << 20);
    fields.Duration("lease", &lease, "Lease.");
    fields.Address("listen", &listen, "Where to listen.");
    fields.Enum("device", &device, {{"auto", Device::kAuto}, {"cpu", Device::kCpu}}, "Device.");
    fields.Nested("selection", &selection);
  }
};

absl::Status Load(Options& options, std::vector<std::string> arguments) {
  return LoadOptions(Fields::Of(options), arguments).status();
}

std::string Error(std::vector<std::string> arguments) {
  Options options;
  const absl::Status status = Load(options, std::move(arguments));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(LoadOptions, ReadsFlagsOfEveryType) {
  Options options;
  ASSERT_TRUE(Load(options, {"--model", "/m", "--fast", "--threads=3", "--max_budget", "7", "--memory=64MiB",
                             "--lease=500ms", "--listen", "0.0.0.0:1", "--device=cpu", "--selection.pool-factor=1.5"})
                  .ok());
  EXPECT_EQ(options.model, "/m");
  EXPECT_TRUE(options.fast);
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.budget, 7u);
  EXPECT_EQ(options.memory_bytes, 64 << 20);
  EXPECT_EQ(options.lease, std::chrono::milliseconds(500));
  EXPECT_EQ(options.listen, (HostPort{"0.0.0.0", 1}));
  EXPECT_EQ(options.device, Device::kCpu);
  EXPECT_EQ(options.selection.pool_factor, 1.5);
}

TEST(LoadOptions, KeepsPositionalsApart) {
  Options options;
  const auto line = LoadOptions(Fields::Of(options), std::vector<std::string>{"a", "--fast", "-", "--", "--model"});
  ASSERT_TRUE(line.ok());
  EXPECT_EQ(line->positionals, (std::vector<std::string>{"a", "-", "--model"}));
  EXPECT_EQ(options.model, "");
}

TEST(LoadOptions, AnUnknownKeyNamesTheNearestKnownOne) {
  EXPECT_EQ(Error({"--thread=3"}), "unknown option \"thread\"; did you mean \"threads\"?");
  EXPECT_EQ(Error({"--selection.pol_factor=3"}),
            "unknown option \"selection.pol_factor\"; did you mean \"selection.pool_factor\"?");
  EXPECT_EQ(Error({"--qqqqqqqqq"}), "unknown option \"qqqqqqqqq\"");
  EXPECT_EQ(Error({"-x"}), "unknown option \"-x\"");
}

TEST(LoadOptions, AWrongValueNamesTheKey) {
  EXPECT_EQ(Error({"--threads=many"}), "option \"threads\": expected a whole number, got \"many\"");
  EXPECT_EQ(Error({"--threads=65"}), "option \"threads\": \"65\" is outside [1, 64]");
  EXPECT_EQ(Error({"--max-budget=-1"}), "option \"max-budget\": \"-1\" is outside [0, 4294967295]");
  EXPECT_EQ(Error({"--device=tpu"}), "option \"device\": expected one of auto, cpu, got \"tpu\"");
  EXPECT_EQ(Error({"--memory=1KiB"}).find("option \"memory\": \"1KiB\" is outside [1MiB"), 0u);
  EXPECT_EQ(Error({"--model"}), "option \"model\" needs a value");
  EXPECT_EQ(Error({"--fast=maybe"}), "option \"fast\": expected true or false, got \"maybe\"");
}

TEST(LoadYaml, NestedMapsAreDottedNames) {
  Options options;
  ASSERT_TRUE(
      LoadYaml(Fields::Of(options), "threads: 5\nselection:\n  pool_factor: 3\nlisten: 'h:9'\nfast: yes\n", "f").ok());
  EXPECT_EQ(options.threads, 5);
  EXPECT_EQ(options.selection.pool_factor, 3);
  EXPECT_EQ(options.listen, (HostPort{"h", 9}));
  EXPECT_TRUE(options.fast);
  EXPECT_TRUE(LoadYaml(Fields::Of(options), "", "empty").ok());
}

TEST(LoadYaml, ErrorsNameFileAndLine) {
  Options options;
  auto error = [&](const char* yaml) { return std::string(LoadYaml(Fields::Of(options), yaml, "f.yaml").message()); };
  EXPECT_EQ(error("fast: true\nthreads: x\n"), "f.yaml:2: option \"threads\": expected a whole number, got \"x\"");
  EXPECT_EQ(error("\nselection:\n  poolfactor: 2\n"),
            "f.yaml:3: unknown option \"selection.poolfactor\"; did you mean \"selection.pool_factor\"?");
  EXPECT_EQ(error("threads: [1, 2]\n"), "f.yaml:1: option \"threads\": expected one value, got a list");
  EXPECT_EQ(error("threads: {a: 1}\n"), "f.yaml:1: option \"threads\": expected one value, got a map");
  EXPECT_THAT(error("a: [\n"), HasSubstr("f.yaml:2: not YAML"));
  EXPECT_EQ(error("- 1\n"), "f.yaml: expected a map of options");
}

TEST(LoadOptions, FlagsWinOverTheFileWhereverTheyStand) {
  const std::string path = testing::TempDir() + "/winnow_load_test_" + std::to_string(getpid()) + ".yaml";
  std::ofstream(path) << "threads: 5\nmodel: from-file\n";
  Options options;
  const absl::Status status = Load(options, {"--threads=6", "--config", path});
  unlink(path.c_str());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(options.threads, 6);
  EXPECT_EQ(options.model, "from-file");
  EXPECT_EQ(Load(options, {"--config=/does/not/exist"}).code(), absl::StatusCode::kNotFound);
}

TEST(DumpYaml, ReadsBackAsTheSameOptions) {
  Options options;
  ASSERT_TRUE(Load(options, {"--model=a: \"b\" # c\n", "--threads=9", "--lease=250us", "--memory=3MiB"}).ok());
  const std::string yaml = DumpYaml(Fields::Of(options));
  Options again;
  ASSERT_TRUE(LoadYaml(Fields::Of(again), yaml, "dump").ok()) << yaml;
  EXPECT_EQ(again.model, options.model);
  EXPECT_EQ(again.threads, 9);
  EXPECT_EQ(DumpYaml(Fields::Of(again)), yaml);
}

TEST(HelpText, NamesEveryOptionWithTypeAndDefault) {
  Options options;
  const std::string help = HelpText(Fields::Of(options));
  EXPECT_THAT(help, HasSubstr("--memory=BYTES   (default 2GiB)\n      Memory for blocks.\n"));
  EXPECT_THAT(help, HasSubstr("--device=auto|cpu   (default auto)"));
  EXPECT_THAT(help, HasSubstr("--selection.pool_factor=NUMBER   (default 2)"));
  const auto line = LoadOptions(Fields::Of(options), std::vector<std::string>{"--help"});
  EXPECT_TRUE(line.ok() && line->help);
}

}  // namespace
}  // namespace winnow
