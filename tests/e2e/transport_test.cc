// Prompts and frames by every transport between processes: the same answers, and the log says which way they went.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/cluster.h"
#include "tests/e2e/golden.h"

namespace winnow::e2e {
namespace {

using testing::HasSubstr;

std::vector<TokenIds> Answers(const Cluster& cluster) {
  std::vector<TokenIds> answers;
  for (const TokenIds& prompt : {DemoCaseOfAtLeast(2000).prompt, DemoText(700, 3), DemoText(40, 5)}) {
    const Completion completion = Complete(cluster.http(), GreedyRequest(prompt, 16));
    EXPECT_TRUE(completion.ok()) << completion.error;
    answers.push_back(completion.ids);
  }
  return answers;
}

struct Answered {
  std::vector<TokenIds> ids;
  std::string log;
};
// A path may come up after the first answers: the log is awaited until it says `expected`.
Answered By(const std::string& transport, std::vector<std::string> flags, const Process::Environment& env,
            std::string_view expected) {
  flags.insert(flags.end(), {"--transport=" + transport, "--budget=256", "--max-context=4096", "--max-running=4"});
  const auto cluster = StartOrFail(flags, env);
  if (cluster == nullptr) return {};
  std::vector<TokenIds> ids = Answers(*cluster);
  WaitUntil(std::chrono::seconds(60), [&] { return cluster->process().Log().find(expected) != std::string::npos; });
  return {std::move(ids), cluster->process().Log()};
}

constexpr char kByP2p[] = "payloads of frames travel by p2p";
constexpr char kByNccl[] = "payloads of frames travel by nccl";
constexpr char kNoGpu[] = "payloads of frames travel by ucx: nccl: this rank has no GPU";
constexpr char kSameGpu[] = "payloads of frames travel by ucx: the peer says: nccl: both sides have the same GPU";

TEST(Transports, AnswerAlikeWithoutGpus) {
  const Answered ucx = By("ucx", {}, {}, ""), p2p = By("p2p", {}, {}, kByP2p), nccl = By("nccl", {}, {}, kNoGpu);
  EXPECT_EQ(p2p.ids, ucx.ids);
  EXPECT_EQ(nccl.ids, ucx.ids);
  EXPECT_THAT(p2p.log, HasSubstr(kByP2p));
  EXPECT_THAT(nccl.log, HasSubstr(kNoGpu));
}

TEST(Transports, AnswerAlikeWithGpus) {
  const Process::Environment env = {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}};
  // The tests' GPU selects for no sequence whose keys have a copy.
  const std::string selection = "--selection=exact-token";
  const std::vector<std::string> gpus = {"--device=cuda", "--cache-device=cuda:1", selection};
  const Answered ucx = By("ucx", gpus, env, ""), nccl = By("nccl", gpus, env, kByNccl);
  EXPECT_EQ(nccl.ids, ucx.ids);
  EXPECT_THAT(nccl.log, HasSubstr(kByNccl));
  // Two ranks on one GPU: NCCL has no use for that.
  const Answered one = By("nccl", {"--device=cuda", "--cache-device=cuda:0", selection}, env, kSameGpu);
  EXPECT_EQ(one.ids, ucx.ids);
  EXPECT_THAT(one.log, HasSubstr(kSameGpu));
}

}  // namespace
}  // namespace winnow::e2e
