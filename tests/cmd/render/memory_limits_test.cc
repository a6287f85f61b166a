// Limits of memory in what is rendered are those of the plan, in every format.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "cmd/plan/rank_sizes.h"
#include "cmd/render/plan.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "yaml-cpp/yaml.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kGib = int64_t{1} << 30;

class MemoryLimits : public testing::Test {
 protected:
  void SetUp() override {
    TinyModel model;
    model.max_position_embeddings = 4096;
    WriteTinyCheckpoint(model, dir_.path());
  }

  Manifest Parsed(const std::string& more, const std::string& path = "") {
    const ParsedManifest parsed =
        ParseManifest(absl::StrCat("model: {path: '", path.empty() ? dir_.path() : path,
                                   "'}\nsecurity: {insecure: true}\ninference: {device: cpu, max_running: 8}\n", more));
    EXPECT_TRUE(parsed.errors.empty());
    return parsed.manifest;
  }

  static std::map<std::string, std::string> Texts(const absl::StatusOr<RenderedFiles>& files) {
    EXPECT_TRUE(files.ok()) << files.status();
    std::map<std::string, std::string> texts;
    for (const RenderedFile& file : *files) texts[file.path] = file.text;
    return texts;
  }

  TempDir dir_;
};

TEST_F(MemoryLimits, AreThoseOfThePlanInEveryFormat) {
  const Manifest manifest = Parsed("cache: {memory: 3GiB}\n");
  const RankSizes sizes = SizeRanks(manifest.options, 0).value();
  ASSERT_EQ(sizes.cache_limit_bytes, LimitFor(3 * kGib));
  const std::string cache = std::to_string(sizes.cache_limit_bytes);
  const std::string inference = std::to_string(sizes.inference_limit_bytes);

  const auto kubernetes = Texts(RenderKubernetes(manifest, "m.yaml"));
  for (const auto& [file, limit] : {std::pair("cache.yaml", cache), std::pair("inference.yaml", inference)}) {
    const YAML::Node resources =
        YAML::LoadAll(kubernetes.at(file))[0]["spec"]["template"]["spec"]["containers"][0]["resources"];
    EXPECT_EQ(resources["limits"]["memory"].as<std::string>(), limit);
    EXPECT_EQ(resources["requests"]["memory"].as<std::string>(), limit);
  }
  EXPECT_THAT(kubernetes.at("router.yaml"), Not(HasSubstr("memory: \""))) << "a plan is of ranks";

  const YAML::Node services = YAML::Load(Texts(RenderCompose(manifest, "m.yaml")).at("compose.yaml"))["services"];
  EXPECT_EQ(services["cache-0"]["deploy"]["resources"]["limits"]["memory"].as<std::string>(), cache);
  EXPECT_EQ(services["inference-0"]["deploy"]["resources"]["limits"]["memory"].as<std::string>(), inference);
  EXPECT_FALSE(services["router"]["deploy"]);

  const auto systemd = Texts(RenderSystemd(manifest, "m.yaml"));
  EXPECT_THAT(systemd.at("winnow-cache@.service"), HasSubstr("\nMemoryMax=" + cache + "\n"));
  EXPECT_THAT(systemd.at("winnow-inference@.service"), HasSubstr("\nMemoryMax=" + inference + "\n"));
  EXPECT_THAT(systemd.at("winnow-router.service"), Not(HasSubstr("MemoryMax")));

  const std::string slurm = Texts(RenderSlurm(manifest, "m.yaml")).at("winnow.sbatch");
  EXPECT_THAT(slurm, HasSubstr(absl::StrCat("#SBATCH --mem-per-cpu=", sizes.cache_limit_bytes >> 20, "M\n")));
  EXPECT_THAT(slurm, HasSubstr(absl::StrCat("#SBATCH --mem-per-cpu=", sizes.inference_limit_bytes >> 20, "M\n")));
}

TEST_F(MemoryLimits, RanksAreToldTheSizesThatTheirLimitsAreOf) {
  const Manifest manifest = Parsed("");
  const RankSizes sizes = SizeRanks(manifest.options, 0).value();
  const YAML::Node services = YAML::Load(Texts(RenderCompose(manifest, "m.yaml")).at("compose.yaml"))["services"];
  EXPECT_THAT(services["inference-0"]["command"].as<std::vector<std::string>>(),
              AllOf(Contains("--slot-memory=" + FormatBytes(sizes.slot_memory_bytes)),
                    Contains("--prefill-memory=" + FormatBytes(sizes.prefill_memory_bytes))));
  EXPECT_THAT(services["cache-0"]["command"].as<std::vector<std::string>>(),
              Contains("--memory=" + FormatBytes(sizes.cache_memory_bytes)));
  EXPECT_EQ(*ParseBytes(FormatBytes(sizes.cache_memory_bytes)), sizes.cache_memory_bytes);
}

TEST_F(MemoryLimits, AreSharedOutToTheCoresThatSlurmCounts) {
  const std::string slurm =
      Texts(RenderSlurm(Parsed("deploy: {cpus: 3, memory: 4GiB}\n"), "m.yaml")).at("winnow.sbatch");
  EXPECT_THAT(slurm, HasSubstr("#SBATCH --cpus-per-task=3\n#SBATCH --mem-per-cpu=1366M\n"))
      << "no byte less than 4 GiB";
}

TEST_F(MemoryLimits, OneThatIsGivenAndDoesNotHoldItsRankIsRefused) {
  const Manifest manifest = Parsed("cache: {memory: 3GiB}\ndeploy: {memory: 3GiB}\n");
  for (const auto render : {RenderKubernetes, RenderCompose, RenderSystemd, RenderSlurm}) {
    const absl::Status refused = render(manifest, "m.yaml").status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("cache-0, which may take 3072 MiB"));
    EXPECT_EQ(refused, SizeRanks(manifest.options, manifest.deploy.memory_bytes).status())
        << "as `config check` says it";
  }
}

TEST_F(MemoryLimits, WithoutTheModelOnlyWhatIsGivenIsWritten) {
  const Manifest unknown = Parsed("", "/nowhere"), given = Parsed("deploy: {memory: 5GiB}\n", "/nowhere");
  EXPECT_FALSE(KnowsMemory(unknown));
  EXPECT_TRUE(KnowsMemory(Parsed("")));
  EXPECT_THAT(Texts(RenderSystemd(unknown, "m.yaml")).at("winnow-cache@.service"), Not(HasSubstr("MemoryMax")));
  EXPECT_THAT(Texts(RenderSystemd(given, "m.yaml")).at("winnow-cache@.service"), HasSubstr("MemoryMax=5368709120\n"));
}

}  // namespace
}  // namespace winnow
