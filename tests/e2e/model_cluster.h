#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/cluster.h"
#include "tests/e2e/completion.h"
#include "tests/support/temp_dir.h"

namespace winnow::e2e {

// Ids of a tiny checkpoint's vocabulary (TinyModel).
inline TokenIds Prompt(size_t tokens, uint32_t seed) {
  TokenIds ids;
  for (uint32_t i = 0; i < tokens; ++i) ids.push_back((seed + i * i * 7 + i / 3) % 96);
  return ids;
}

// Clusters of a checkpoint that the test has written, one after the other. Each must end in good order.
template <typename Param>
class ModelCluster : public testing::TestWithParam<Param> {
 protected:
  // Computing in f32.
  void Start(std::vector<std::string> flags = {}) {
    flags.insert(flags.end(), {"--compute=f32", "--kv-dtype=f32"});
    StartWith(flags);
  }
  void StartWith(const std::vector<std::string>& flags) {
    if (cluster_ != nullptr) {
      ASSERT_TRUE(cluster_->Stop().ok());
    }
    absl::StatusOr<std::unique_ptr<Cluster>> started = Cluster::Start({.model = directory_.path(), .flags = flags});
    ASSERT_TRUE(started.ok()) << started.status().message();
    cluster_ = *std::move(started);
  }
  void TearDown() override {
    if (cluster_ == nullptr) return;
    const absl::Status stopped = cluster_->Stop();
    EXPECT_TRUE(stopped.ok()) << stopped.message();
  }
  Completion Ask(const Json& request) const {
    if (cluster_ == nullptr) return {};  // Start has said why
    Completion completion = Complete(cluster_->http(), request);
    EXPECT_TRUE(completion.ok()) << completion.error;
    return completion;
  }
  static Json LogProbs(const Completion& completion) { return completion.choice.at("logprobs").at("token_logprobs"); }

  const TempDir directory_;
  std::unique_ptr<Cluster> cluster_;
};

}  // namespace winnow::e2e
