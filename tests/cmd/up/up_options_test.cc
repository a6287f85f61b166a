#include "cmd/up/up_options.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cache_rank/store/kv_block_pool.h"
#include "common/config/load.h"
#include "common/selection/spec_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class UpOptionsTest : public testing::Test {
 protected:
  UpOptionsTest() : folder_(std::filesystem::path(testing::TempDir()) / ("winnow_up_" + std::to_string(getpid()))) {
    std::filesystem::create_directory(folder_);
    std::ofstream(folder_ / "config.json") << "{}";
    options_.model = folder_;
  }
  ~UpOptionsTest() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path folder_;
  UpOptions options_;
};

TEST_F(UpOptionsTest, TwoThatWantOnePortAreNamed) {
  options_.http.port = 9000;
  options_.grpc.port = 9000;
  EXPECT_EQ(options_.Validate().message(), "127.0.0.1:9000 is wanted twice: by --http and by --grpc");
  options_.grpc.port = 9001;
  options_.metrics.port = 8999;  // the router's; 9000 is the inference rank's
  EXPECT_EQ(options_.Validate().message(),
            "127.0.0.1:9000 is wanted twice: by --http and by --metrics=127.0.0.1:8999, from which 3 "
            "processes take one each");
  for (HostPort* address : {&options_.http, &options_.grpc, &options_.metrics}) address->port = 0;
  EXPECT_TRUE(options_.Validate().ok());
}

TEST_F(UpOptionsTest, SeesWhatIsWrongBeforeAnythingStarts) {
  EXPECT_TRUE(options_.Validate().ok());
  UpOptions bad = options_;
  bad.model = "";
  EXPECT_THAT(std::string(bad.Validate().message()), HasSubstr("--model DIR is required"));
  bad.model = "/no/such/folder";
  EXPECT_THAT(std::string(bad.Validate().message()), HasSubstr("there is no folder /no/such/folder"));
  bad.model = "/";
  EXPECT_THAT(std::string(bad.Validate().message()), HasSubstr("no config.json in /"));
  bad = options_;
  bad.selection.specification = "nonsense";
  EXPECT_THAT(std::string(bad.Validate().message()), HasSubstr("unknown selection preset \"nonsense\""));
  bad = options_;
  bad.max_context = 1;
  EXPECT_THAT(std::string(bad.Validate().message()), HasSubstr("--max-context=1 leaves no token"));
  bad = options_;
  bad.metrics.port = 65534;
  EXPECT_THAT(std::string(bad.Validate().message()), HasSubstr("--metrics: 3 ports from 65534 on do not exist"));
}

TEST_F(UpOptionsTest, SeesMemoryThatHoldsNoSequence) {
  options_.model = "synthetic:llama3-8b";  // 32 layers of 8 kv heads of 128 elements
  const KvLayout layout{.num_layers = 32, .num_query_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  const auto block_bytes = static_cast<int64_t>(BlockBytes(layout));
  options_.cache_memory_bytes = 256 * block_bytes;
  EXPECT_TRUE(options_.Validate().ok()) << options_.Validate();
  --options_.cache_memory_bytes;
  EXPECT_THAT(std::string(options_.Validate().message()),
              AllOf(HasSubstr(absl::StrCat("needs ", 256 * block_bytes, " at least")), HasSubstr("--cache-memory")));
  options_.cache_ranks = 9;
  options_.placement.cache_shards = 9;  // one kv head is cut in two, the others are whole
  options_.cache_memory_bytes = 32 * block_bytes;
  EXPECT_TRUE(options_.Validate().ok()) << options_.Validate();
  --options_.cache_memory_bytes;
  EXPECT_FALSE(options_.Validate().ok());
  options_.cache_memory_bytes = 0;
  options_.fast_memory_bytes = 4096;
  EXPECT_THAT(std::string(options_.Validate().message()), HasSubstr("raise --fast-memory"));
}

TEST_F(UpOptionsTest, RowsOfInt8AreRefusedByNameWhereTheyCannotBeServed) {
  WriteTinyCheckpoint({}, folder_);
  options_.kv_dtype = Dtype::kI8;
  EXPECT_TRUE(options_.Validate().ok()) << options_.Validate();
  const auto refuses = [](const UpOptions& options, std::string_view where, std::string_view why) {
    EXPECT_THAT(std::string(options.Validate().message()),
                AllOf(HasSubstr(where), HasSubstr("int8"), HasSubstr("--kv-dtype"), HasSubstr(why)));
  };
  UpOptions bad = options_;
  bad.device = {DeviceChoice::Kind::kGpu, 0};
  refuses(bad, "on GPUs", "heads of 64, 96, 128 or 256 elements, not 16");
  bad = options_;
  bad.tensor_parallel = 2;
  refuses(bad, "--tensor-parallel", "rows of int8 lie on one GPU");
  bad = options_;
  bad.device = {DeviceChoice::Kind::kGpu, 0};
  bad.slot_host_memory_bytes = 1 << 30;
  refuses(bad, "--slot-host-memory", "in the memory of the GPU");
  bad = options_;
  bad.cache_device = {DeviceChoice::Kind::kGpu, 0};
  refuses(bad, "--cache-device", "rows of bf16 alone");
  bad = options_;
  bad.selection.specification = "winnow,key_copy=int4";
  refuses(bad, "key_copy", "whose keys are scored as they are");
  bad = options_;
  WriteTinyCheckpoint({.family = ModelFamily::kDeepseekV3}, folder_);
  refuses(bad, "latent attention", "bf16 or f32");
}

TEST_F(UpOptionsTest, RowsOfInt8AreServedOnOneGpu) {
  WriteTinyCheckpoint({.head_dim = 64}, folder_);
  options_.kv_dtype = Dtype::kI8;
  options_.device = {DeviceChoice::Kind::kGpu, 0};
  options_.select_in_place = SelectInPlace::kOn;
  EXPECT_TRUE(options_.Validate().ok()) << options_.Validate();
  options_.kv_dtype = Dtype::kF32;
  EXPECT_THAT(std::string(options_.Validate().message()),
              HasSubstr("--kv-dtype=f32: on GPUs KV rows are bf16 or int8"));
}

TEST_F(UpOptionsTest, EveryProcessHasAMetricsPortOfItsOwn) {
  options_.inference_ranks = 2;
  options_.cache_ranks = 2;
  const std::vector<HostPort> router = {{"127.0.0.1", 8001}};
  EXPECT_EQ(options_.Router().process.metrics.port, 9100);
  EXPECT_EQ(options_.InferenceRank(0, router).process.metrics.port, 9101);
  EXPECT_EQ(options_.InferenceRank(1, router).process.metrics.port, 9102);
  EXPECT_EQ(options_.CacheRank(0, router).process.metrics.port, 9103);
  EXPECT_EQ(options_.CacheRank(1, router).process.metrics.port, 9104);
  EXPECT_EQ(options_.num_processes(), 5);
  options_.metrics.port = 0;
  EXPECT_EQ(options_.CacheRank(1, router).process.metrics.port, 0);
}

TEST_F(UpOptionsTest, EachOfSeveralRoutersHasANameAndPortsOfItsOwn) {
  options_.routers = 3;
  EXPECT_EQ(options_.Router(2).process.rank, "router-2");
  EXPECT_EQ(options_.Router(2).http.port, 8020);
  EXPECT_EQ(options_.Router(2).process.grpc.port, 8021);
  EXPECT_EQ(options_.Router(2).process.metrics.port, 9102);
  EXPECT_EQ(options_.InferenceRank(0, {}).process.metrics.port, 9103);
  EXPECT_EQ(options_.CacheRank(0, {}).process.metrics.port, 9104);
  EXPECT_EQ(options_.num_processes(), 5);
  EXPECT_TRUE(options_.CheckConsistency().ok()) << options_.CheckConsistency();
  options_.grpc.port = 8010;
  EXPECT_THAT(std::string(options_.CheckConsistency().message()),
              HasSubstr("127.0.0.1:8010 is wanted twice: by --grpc of router-0 and by --http of router-1"));
  options_.grpc.port = 65530;
  EXPECT_THAT(std::string(options_.CheckConsistency().message()), HasSubstr("--grpc: the ports of 3 routers"));
  options_.grpc.port = options_.http.port = 0;
  EXPECT_EQ(options_.Router(2).http.port, 0) << "each takes a free one";
  EXPECT_TRUE(options_.CheckConsistency().ok());
  options_.part = {.host = "10.0.0.1", .all_cache_ranks = 1};
  EXPECT_THAT(std::string(options_.CheckConsistency().message()), HasSubstr("each has one router"));
}

TEST_F(UpOptionsTest, PrefillAndDecodeCanHaveRanksOfTheirOwn) {
  ASSERT_TRUE(LoadOptions(Fields::Of(options_), std::vector<std::string>{"--prefill-ranks=2", "--decode-ranks=1",
                                                                         "--decode-prefill-tokens=64"})
                  .ok());
  EXPECT_TRUE(options_.Validate().ok());
  const std::vector<HostPort> router = {{"127.0.0.1", 8001}};
  EXPECT_EQ(options_.InferenceRank(0, router).process.rank, "prefill-0");
  EXPECT_EQ(options_.InferenceRank(1, router).role, InferenceRole::kPrefill);
  EXPECT_EQ(options_.InferenceRank(2, router).process.rank, "decode-0");
  EXPECT_EQ(options_.InferenceRank(2, router).role, InferenceRole::kDecode);
  EXPECT_EQ(options_.InferenceRank(2, router).decode_prefill_tokens, 64u);
  EXPECT_EQ(options_.CacheRank(0, router).process.metrics.port, 9104);
  EXPECT_EQ(options_.num_processes(), 5);
  UpOptions bad = options_;
  bad.decode_ranks = 0;
  EXPECT_THAT(std::string(bad.Validate().message()), HasSubstr("need each other"));
  bad = options_;
  bad.inference_ranks = 2;
  EXPECT_THAT(std::string(bad.Validate().message()), HasSubstr("exclude each other"));
  bad = options_;
  bad.transport = TransportKind::kInproc;
  EXPECT_THAT(std::string(bad.Validate().message()), HasSubstr("--transport=inproc has none"));
}

TEST_F(UpOptionsTest, SequencesMayBeSpreadOverCacheRanks) {
  const auto load = [&](std::vector<std::string> flags) { return LoadOptions(Fields::Of(options_), flags); };
  EXPECT_EQ(options_.Router().placement.cache_shards, 1u);
  ASSERT_TRUE(load({"--cache-ranks=4", "--cache-shards=2", "--slow-start=5s"}).ok());
  EXPECT_TRUE(options_.Validate().ok());
  EXPECT_EQ(options_.Router().placement.cache_shards, 2u);
  EXPECT_EQ(options_.Router().placement.slow_start, std::chrono::seconds(5));
  ASSERT_TRUE(load({"--cache-shards=5"}).ok());
  EXPECT_THAT(std::string(options_.Validate().message()), HasSubstr("--cache-shards=5 needs as many cache ranks"));
  ASSERT_TRUE(load({"--cache-shards=auto"}).ok());
  EXPECT_TRUE(options_.Validate().ok());
  EXPECT_EQ(options_.Router().placement.cache_shards, 0u);
  options_.transport = TransportKind::kInproc;
  EXPECT_THAT(std::string(options_.Validate().message()), HasSubstr("--cache-shards needs cache ranks"));
  for (const char* wrong : {"--cache-shards=0", "--cache-shards=-1", "--cache-shards=all", "--cache-shards=65"}) {
    EXPECT_FALSE(load({wrong}).ok()) << wrong;
  }
}

TEST_F(UpOptionsTest, SequencesMayHaveReplicas) {
  const auto load = [&](std::vector<std::string> flags) { return LoadOptions(Fields::Of(options_), flags); };
  EXPECT_EQ(options_.Router().placement.replicas, 1u);
  ASSERT_TRUE(load({"--replicas=2"}).ok());
  EXPECT_THAT(std::string(options_.Validate().message()), HasSubstr("--replicas=2 needs as many cache ranks"));
  ASSERT_TRUE(load({"--cache-ranks=2"}).ok());
  EXPECT_TRUE(options_.Validate().ok());
  EXPECT_EQ(options_.Router().placement.replicas, 2u);
  for (const char* shards : {"--cache-shards=2", "--cache-shards=auto"}) {
    ASSERT_TRUE(load({shards}).ok());
    EXPECT_THAT(std::string(options_.Validate().message()), HasSubstr("--replicas=2 and --cache-shards exclude"));
  }
  ASSERT_TRUE(load({"--cache-shards=1"}).ok());
  options_.transport = TransportKind::kInproc;
  EXPECT_THAT(std::string(options_.Validate().message()), HasSubstr("--replicas=2 needs cache ranks"));
  for (const char* wrong : {"--replicas=0", "--replicas=3"}) EXPECT_FALSE(load({wrong}).ok()) << wrong;
}

TEST_F(UpOptionsTest, TheFlagsOfUpReachTheProcesses) {
  ASSERT_TRUE(LoadOptions(Fields::Of(options_), std::vector<std::string>{"--selection=exact-token",
                                                                         "--budget=512",
                                                                         "--sinks=8",
                                                                         "--recent=32",
                                                                         "--transport=inproc",
                                                                         "--compute=f32",
                                                                         "--kv-dtype=f32",
                                                                         "--max-context=4096",
                                                                         "--max-running=3",
                                                                         "--max-batch-tokens=100",
                                                                         "--max-inject-tokens=32",
                                                                         "--tpot-target=50ms",
                                                                         "--age-bound=5s",
                                                                         "--working-set-control=off",
                                                                         "--prefill=layered",
                                                                         "--prefix-attention=remote",
                                                                         "--prefill-chunk=96",
                                                                         "--prefill-memory=2MiB",
                                                                         "--max-queue=5",
                                                                         "--threads=2",
                                                                         "--cache-memory=1GiB"})
                  .ok());
  const std::vector<HostPort> router = {{"127.0.0.1", 7777}};
  const InferenceProcessOptions inference = options_.InferenceRank(0, router);
  EXPECT_EQ(inference.join.routers, router);
  EXPECT_EQ(inference.transport, TransportKind::kInproc);
  EXPECT_EQ(inference.compute, Dtype::kF32);
  EXPECT_EQ(inference.kv_dtype, Dtype::kF32);
  EXPECT_EQ(inference.max_context, 4096u);
  EXPECT_EQ(inference.max_running, 3u);
  EXPECT_EQ(inference.prefill.mode, PrefillMode::kLayered);
  EXPECT_EQ(inference.prefill.prefix_attention, PrefixAttention::kRemote);
  EXPECT_EQ(inference.prefill.chunk, 96u);
  EXPECT_EQ(inference.prefill.memory_bytes, 2 << 20);
  EXPECT_EQ(inference.scheduling.max_batch_tokens, 100u);
  EXPECT_EQ(inference.scheduling.max_inject_tokens, 32u);
  EXPECT_EQ(inference.scheduling.tpot_target, std::chrono::milliseconds(50));
  EXPECT_FALSE(inference.scheduling.working_set_control);
  EXPECT_EQ(inference.scheduling.age_bound, std::chrono::seconds(5));
  EXPECT_EQ(inference.threads, 2);
  EXPECT_EQ(inference.cache.memory_bytes, 1 << 30);
  EXPECT_EQ(options_.Router().max_queue, 5u);
  for (const SelectionOptions& selection : {inference.selection, options_.Router().selection}) {
    const auto spec = selection.Resolve("");
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->preset, "exact-token");
    EXPECT_EQ(spec->budget_tokens, 512u);
    EXPECT_EQ(spec->sink_tokens, 8u);
    EXPECT_EQ(spec->recent_tokens, 32u);
  }
}

TEST_F(UpOptionsTest, ARegistryReachesRouterAndRanksWhichKeepTheirRouter) {
  const std::vector<std::string> flags = {"--registry=etcds://a:1,b:2/site", "--registry-lease=4s"};
  ASSERT_TRUE(LoadOptions(Fields::Of(options_), flags).ok());
  const std::vector<HostPort> router = {{"127.0.0.1", 7777}};
  InferenceProcessOptions given = options_.InferenceRank(0, router), rank;
  ASSERT_TRUE(LoadYaml(Fields::Of(rank), DumpYaml(Fields::Of(given)), "rank").ok());
  for (const DiscoveryOptions& discovery :
       {rank.join.discovery, options_.Router().discovery, options_.CacheRank(0, router).join.discovery}) {
    ASSERT_TRUE(discovery.registry.has_value());
    EXPECT_EQ(discovery.registry->ToString(), "etcds://a:1,b:2/site");
    EXPECT_EQ(discovery.lease, std::chrono::seconds(4));
  }
  EXPECT_EQ(rank.join.Routers(), router);
}

TEST_F(UpOptionsTest, ARankThatIsToldNoRouterLooksInTheRegistryOrOnThisMachine) {
  JoinOptions join;
  EXPECT_EQ(join.Routers(), (std::vector<HostPort>{{"127.0.0.1", 8001}}));
  EXPECT_EQ(join.Landmarks(), join.Routers());
  const Fields fields = Fields::Of(join);
  ASSERT_TRUE(LoadOptions(fields, std::vector<std::string>{"--registry=etcd://10.0.0.5:2379"}).ok());
  EXPECT_THAT(join.Routers(), testing::IsEmpty());
  EXPECT_EQ(join.Landmarks(), (std::vector<HostPort>{{"10.0.0.5", 2379}}));
  ASSERT_TRUE(LoadOptions(fields, std::vector<std::string>{"--router=a:1"}).ok());
  EXPECT_EQ(join.Landmarks(), (std::vector<HostPort>{{"a", 1}}));
  for (const char* flag : {"--registry=10.0.0.5:2379", "--registry-lease=1s", "--registry-lease=2500ms"}) {
    const absl::Status status = LoadOptions(fields, std::vector<std::string>{flag}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << flag;
    EXPECT_THAT(std::string(status.message()), HasSubstr("option \"registry"));
  }
}

TEST_F(UpOptionsTest, ASpecificationReachesRouterAndRanks) {
  ASSERT_TRUE(LoadOptions(Fields::Of(options_), std::vector<std::string>{"--selection=async-token,window=16,budget=512",
                                                                         "--budget=256", "--pool-factor=3"})
                  .ok());
  InferenceProcessOptions rank;
  RouterProcessOptions router;
  InferenceProcessOptions given_rank = options_.InferenceRank(0, {{"h", 1}});
  ASSERT_TRUE(LoadYaml(Fields::Of(rank), DumpYaml(Fields::Of(given_rank)), "rank").ok());
  RouterProcessOptions given = options_.Router();
  ASSERT_TRUE(LoadYaml(Fields::Of(router), DumpYaml(Fields::Of(given)), "router").ok());
  for (const SelectionOptions& selection : {rank.selection, router.selection}) {
    const auto spec = selection.Resolve("");
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(SpecText(*spec), "async-token,window=16,budget=256,pool_factor=3") << "options win over the text";
  }
}

TEST_F(UpOptionsTest, ASelectionThatUsesAHeadProfileNeedsOne) {
  options_.selection.specification = "winnow,profile_use=budgets";
  EXPECT_THAT(std::string(options_.selection.Resolve("").status().message()),
              HasSubstr("selection.profile_use is budgets, which needs a head profile"));
  options_.selection.head_profile = "profile.json";
  EXPECT_EQ(options_.selection.Resolve("")->profile_use, ProfileUse::kBudgets);
  options_.selection.specification = "lserve,list_per=kv-head";
  EXPECT_EQ(options_.selection.Resolve("")->profile_use, ProfileUse::kStreaming);
  options_.selection.head_profile = "";
  EXPECT_THAT(std::string(options_.selection.Resolve("").status().message()),
              HasSubstr("selection.profile_use is streaming, which needs a head profile"));
  options_.selection.specification = "lserve,list_per=kv-head,profile_use=none";
  EXPECT_EQ(options_.selection.Resolve("")->profile_use, ProfileUse::kNone);
}

TEST_F(UpOptionsTest, EachInferenceRankTakesTheNextGpu) {
  const std::vector<HostPort> router = {{"127.0.0.1", 8001}};
  options_.inference_ranks = 3;
  EXPECT_EQ(ToString(options_.InferenceRank(0, router).device), "auto");
  EXPECT_EQ(ToString(options_.InferenceRank(2, router).device), "auto:2");
  ASSERT_TRUE(LoadOptions(Fields::Of(options_), std::vector<std::string>{"--device=cuda:4"}).ok());
  EXPECT_EQ(ToString(options_.InferenceRank(0, router).device), "cuda:4");
  EXPECT_EQ(ToString(options_.InferenceRank(1, router).device), "cuda:5");
  ASSERT_TRUE(LoadOptions(Fields::Of(options_), std::vector<std::string>{"--device=cpu"}).ok());
  EXPECT_EQ(ToString(options_.InferenceRank(1, router).device), "cpu");
  EXPECT_THAT(
      std::string(LoadOptions(Fields::Of(options_), std::vector<std::string>{"--device=gpu"}).status().message()),
      HasSubstr("\"gpu\" is not auto, cpu or cuda"));
}

TEST_F(UpOptionsTest, AConfigurationFileTakesASpecificationAndNamesItsLine) {
  ASSERT_TRUE(LoadYaml(Fields::Of(options_), "max-queue: 4\nselection: winnow,lookahead=2,recent=128\n", "f").ok());
  EXPECT_EQ(SpecText(*options_.selection.Resolve("")), "winnow,lookahead=2,recent=128");
  const absl::Status status = LoadYaml(Fields::Of(options_), "max-queue: 4\nselection: winnow,recnt=128\n", "f");
  EXPECT_THAT(std::string(status.message()), HasSubstr("f:2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("did you mean \"recent\"?"));
}

TEST_F(UpOptionsTest, AChildReadsBackTheConfigurationThatItIsGiven) {
  InferenceProcessOptions given = options_.InferenceRank(0, {{"127.0.0.1", 8001}});
  const std::string yaml = DumpYaml(Fields::Of(given));
  InferenceProcessOptions read;
  ASSERT_TRUE(LoadYaml(Fields::Of(read), yaml, "config").ok());
  EXPECT_EQ(DumpYaml(Fields::Of(read)), yaml);
  EXPECT_EQ(read.model, folder_);
  EXPECT_EQ(read.process.rank, "inference-0");
}

}  // namespace
}  // namespace winnow
