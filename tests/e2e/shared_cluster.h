#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/cluster.h"

namespace winnow::e2e {

// A fixture whose tests share one cluster, because starting one costs a second. `Flags` has a static member function
// `Options()`. After the last test the cluster must end in good order.
template <class Flags>
class SharedCluster : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    absl::StatusOr<std::unique_ptr<Cluster>> started = Cluster::Start(Flags::Options());
    if (started.ok()) {
      cluster_ = *std::move(started);
    } else {
      ADD_FAILURE() << started.status().message();
    }
  }

  static void TearDownTestSuite() {
    if (cluster_ == nullptr) return;
    const absl::Status stopped = cluster_->Stop();
    EXPECT_TRUE(stopped.ok()) << stopped.message();
    cluster_ = nullptr;
  }

  void SetUp() override { ASSERT_NE(cluster_, nullptr) << "the cluster did not start"; }

  // The log explains a failure better than the test can.
  void TearDown() override {
    if (HasFailure() && cluster_ != nullptr) {
      const std::string log = cluster_->process().Log();
      constexpr size_t kShown = 8000;
      GTEST_LOG_(INFO) << "end of the cluster's log:\n" << log.substr(log.size() > kShown ? log.size() - kShown : 0);
    }
  }

  static std::unique_ptr<Cluster> cluster_;
};

template <class Flags>
std::unique_ptr<Cluster> SharedCluster<Flags>::cluster_;

}  // namespace winnow::e2e
