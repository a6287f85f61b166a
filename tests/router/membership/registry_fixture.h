#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "router/membership/registry.h"

namespace winnow {

// A registry on a clock that stands still unless a test moves it, and ranks that register as they should.
class RegistryTest : public ::testing::Test {
 protected:
  static v1::RegisterRequest Inference(const std::string& rank = "inference-0", uint64_t incarnation = 1) {
    v1::RegisterRequest request;
    v1::Identity* identity = request.mutable_identity();
    identity->set_cluster("c");
    identity->set_role(v1::ROLE_INFERENCE_RANK);
    identity->set_rank(rank);
    identity->set_incarnation(incarnation);
    identity->set_address("127.0.0.1:1000");
    v1::Fingerprint* f = request.mutable_fingerprint();
    f->set_model_digest("m");
    f->set_tokenizer_digest("t");
    f->mutable_kv_shape()->set_num_layers(8);
    f->mutable_kv_shape()->set_kv_dtype(v1::KV_DTYPE_BF16);
    f->mutable_kv_shape()->add_rope_inv_freq(1.0f);
    f->mutable_kv_shape()->add_rope_inv_freq(0.5f);
    f->set_block_tokens(32);
    f->set_row_layout(1);
    f->set_selector_version(1);
    f->set_wire_version(1);
    f->set_numerics("cpu-avx2");
    request.mutable_limits()->set_max_context_tokens(4096);
    request.mutable_limits()->set_vocab_size(512);
    request.mutable_limits()->set_max_budget_tokens(2048);
    return request;
  }
  static v1::RegisterRequest Cache(const std::string& rank = "cache-0", uint64_t incarnation = 1) {
    v1::RegisterRequest request = Inference(rank, incarnation);
    request.mutable_identity()->set_role(v1::ROLE_CACHE_RANK);
    request.clear_limits();
    request.mutable_fingerprint()->clear_model_digest();
    request.mutable_fingerprint()->clear_tokenizer_digest();
    request.mutable_fingerprint()->clear_kv_shape();
    request.mutable_fingerprint()->clear_numerics();
    return request;
  }
  static v1::HeartbeatRequest Beat(const v1::RegisterRequest& of, uint32_t running = 0, bool draining = false) {
    v1::HeartbeatRequest beat;
    *beat.mutable_identity() = of.identity();
    beat.mutable_load()->set_running_sequences(running);
    beat.mutable_load()->set_draining(draining);
    return beat;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const RankRecord& record : registry_.Snapshot().ranks) names.push_back(record.identity.rank());
    return names;
  }

  // Time in which the router runs and checks leases as it should.
  void Pass(std::chrono::milliseconds time) {
    for (; time > std::chrono::milliseconds(100); time -= std::chrono::milliseconds(100)) {
      now_ += std::chrono::milliseconds(100);
      registry_.ExpireLeases();
    }
    now_ += time;
    registry_.ExpireLeases();
  }
  // Time in which the router is stopped, or gets no CPU.
  void BeAway(std::chrono::milliseconds time) { now_ += time; }

  std::chrono::steady_clock::time_point now_{};
  std::vector<std::pair<std::string, Departure>> departures_;
  Registry registry_{
      {.cluster = "c",
       .on_departure = [this](const v1::Identity& rank, Departure why) { departures_.emplace_back(rank.rank(), why); }},
      [this] { return now_; }};
};

}  // namespace winnow
