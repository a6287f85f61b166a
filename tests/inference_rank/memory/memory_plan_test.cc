#include "inference_rank/memory/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/selection/presets.h"
#include "inference_rank/memory/prefill_arena.h"
#include "inference_rank/memory/working_set.h"

namespace winnow {
namespace {

using testing::HasSubstr;

constexpr uint64_t kGib = uint64_t{1} << 30;

// Qwen3-14B: 163,840 bytes of KV per token.
MemoryNeeds Needs() {
  MemoryNeeds needs;
  needs.layout = {.num_layers = 40, .num_query_heads = 40, .num_kv_heads = 8, .head_dim = 128, .dtype = Dtype::kBf16};
  needs.selection = *FindPreset("winnow");
  needs.max_context_tokens = 32768;
  needs.max_running = 64;
  needs.weights_bytes = 28 * kGib;
  needs.activation_bytes = kGib;
  needs.memory_name = "GPU 0's memory";
  needs.is_exclusive = true;
  return needs;
}

uint64_t SequenceSlotBytes(const MemoryNeeds& needs) {
  return WorkingSet::PagesNeeded(needs.layout, needs.selection, needs.max_context_tokens) * uint64_t{kSlotPageTokens} *
         needs.layout.row_bytes();
}

TEST(MemoryPlan, PartsAddUpToWhatIsThere) {
  const MemoryNeeds needs = Needs();
  const MemoryPlan plan = PlanMemory(needs, 139 * kGib).value();
  EXPECT_EQ(plan.prefill_bytes, 2 * PrefillSizing::AllKvBytes(needs.layout, needs.max_context_tokens));
  EXPECT_EQ(plan.slot_bytes, 64 * SequenceSlotBytes(needs)) << "all that 64 sequences can need";
  EXPECT_LE(plan.total_bytes(), 139 * kGib);
}

TEST(MemoryPlan, SlotsOfAGpuTakeWhatTheRestLeaves) {
  // 28 GiB of weights, 1 of activations, 10 of prefill leave 33 of 72.
  const MemoryNeeds needs = Needs();
  const MemoryPlan plan = PlanMemory(needs, 72 * kGib).value();
  const uint64_t rest = 72 * kGib - plan.weights_bytes - plan.activation_bytes - plan.prefill_bytes;
  EXPECT_LE(plan.slot_bytes, rest / 10 * 9);
  EXPECT_GT(plan.slot_bytes, rest / 10 * 9 - kGib / 100);
  EXPECT_GE(plan.slot_bytes, 20 * SequenceSlotBytes(needs));
}

// Weights and activations are given for each GPU; KV is divided by heads.
TEST(MemoryPlan, IsThatOfEachGpuWhereSeveralShareAModel) {
  MemoryNeeds needs = Needs();
  needs.parts = 2;
  needs.weights_bytes /= 2;
  needs.memory_name = "the memory of each of GPUs 0 and 1";
  const MemoryPlan plan = PlanMemory(needs, 139 * kGib).value();
  EXPECT_EQ(plan.prefill_bytes, PrefillSizing::AllKvBytes(needs.layout, needs.max_context_tokens));
  EXPECT_EQ(plan.slot_bytes, 32 * SequenceSlotBytes(needs));
  const absl::Status status = PlanMemory(needs, 16 * kGib).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("weights 14336.0 MiB"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("of 16384.0 MiB of the memory of each of GPUs 0 and 1 available"));
}

// Each of them has the residuals of all tokens, beside its heads of one layer.
TEST(MemoryPlan, GpusThatShareAModelHaveAllResidualsEach) {
  MemoryNeeds needs = Needs();
  needs.prefill_mode = PrefillMode::kLayered;
  needs.hidden_size = 5120;
  const uint64_t kv = needs.layout.token_bytes() / needs.layout.num_layers, residual = 5120 * sizeof(float);
  EXPECT_EQ(PlanMemory(needs, 139 * kGib)->prefill_bytes, 2 * needs.max_context_tokens * (kv + residual));
  needs.parts = 2;
  EXPECT_EQ(PlanMemory(needs, 139 * kGib)->prefill_bytes, 2 * needs.max_context_tokens * (kv / 2 + residual));
  needs.prefill_memory_bytes = needs.max_context_tokens * (kv / 2 + residual);
  EXPECT_EQ(PlanMemory(needs, 139 * kGib)->prefill_bytes, needs.prefill_memory_bytes);
  needs.prefill_memory_bytes -= 1;
  EXPECT_THAT(std::string(PlanMemory(needs, 139 * kGib).status().message()), HasSubstr("cannot hold a prompt of"));
  // Where all KV of each half fits, auto keeps it.
  needs.prefill_mode = PrefillMode::kAuto;
  needs.prefill_memory_bytes = PrefillSizing::AllKvBytes(needs.layout, needs.max_context_tokens) / 2;
  EXPECT_TRUE(PlanMemory(needs, 139 * kGib).ok());
}

TEST(MemoryPlan, OfSharedMemoryResidentKvTakesTwoFifths) {
  MemoryNeeds needs = Needs();
  needs.is_exclusive = false;
  const MemoryPlan plan = PlanMemory(needs, 72 * kGib).value();
  EXPECT_LE(plan.slot_bytes, 72 * kGib * 2 / 5);
}

// 40 GiB of weights, 1 of activations and 10 of prompts leave 21 of 72: less than two fifths.
TEST(MemoryPlan, AutomaticSlotsTakeNoMoreThanIsLeft) {
  MemoryNeeds needs = Needs();
  needs.is_exclusive = false;
  needs.weights_bytes = 40 * kGib;
  const MemoryPlan plan = PlanMemory(needs, 72 * kGib).value();
  EXPECT_LE(plan.slot_bytes, 21 * kGib / 10 * 9);
  EXPECT_EQ(RunningSequences(needs, plan, needs.max_context_tokens), plan.slot_bytes / SequenceSlotBytes(needs));
  EXPECT_EQ(RunningSequences(needs, plan, 1024), needs.max_running) << "short ones are not as large";
  EXPECT_EQ(plan.least_bytes,
            41 * kGib + SequenceSlotBytes(needs) + PrefillSizing::AllKvBytes(needs.layout, needs.max_context_tokens));
  EXPECT_TRUE(PlanMemory(needs, plan.least_bytes * 10 / 9).ok());
}

TEST(MemoryPlan, WhatDoesNotFitIsAddedUp) {
  const absl::Status status = PlanMemory(Needs(), 24 * kGib).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("the model does not fit: weights 28672.0 MiB + resident KV "));
  EXPECT_THAT(message, HasSubstr(" + activations 1024.0 MiB = "));
  EXPECT_THAT(message, HasSubstr(" of 24576.0 MiB of GPU 0's memory available; "));
  EXPECT_THAT(message, HasSubstr(" MiB are missing: share the model out with --tensor-parallel"));
}

TEST(MemoryPlan, APromptOfTheLongestContextMustFit) {
  MemoryNeeds needs = Needs();
  needs.prefill_memory_bytes = kGib;
  const absl::Status status = PlanMemory(needs, 139 * kGib).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot hold a prompt of 32768 tokens, which needs 5120.0 MiB"));
}

TEST(MemoryPlan, TheSlotsOfASequenceOfTheLongestContextMustFit) {
  MemoryNeeds needs = Needs();
  needs.slot_memory_bytes = SequenceSlotBytes(needs);
  EXPECT_EQ(PlanMemory(needs, 139 * kGib)->slot_bytes, needs.slot_memory_bytes);
  --needs.slot_memory_bytes;
  const absl::Status status = PlanMemory(needs, 139 * kGib).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("raise --slot-memory"));
}

// In place, with 8-bit keys and page bounds: 47 KiB of index for 160 of rows of each token.
MemoryNeeds InPlace() {
  MemoryNeeds needs = Needs();
  needs.selects_in_place = true;
  needs.index_bytes_per_row = 164;
  needs.selection.pool_factor = 2;
  needs.staging_slots = 4096;
  return needs;
}

TEST(MemoryPlan, TokensGrowWithHostMemoryUntilTheirIndexFillsTheGpus) {
  MemoryNeeds needs = InPlace();
  const uint64_t available = 72 * kGib;
  const auto tokens = [](const MemoryPlan& plan) { return uint64_t{plan.slot_pages} / 320 * kSlotPageTokens; };
  const MemoryPlan none = PlanMemory(needs, available).value();
  const uint64_t row_bytes = 320 * needs.layout.row_bytes();
  uint64_t before = tokens(none);
  for (const uint64_t host : {8 * kGib, 16 * kGib, 32 * kGib}) {
    needs.slot_host_memory_bytes = host;
    const MemoryPlan plan = PlanMemory(needs, available).value();
    EXPECT_EQ(plan.host_slot_bytes, host);
    EXPECT_GT(tokens(plan), before);
    EXPECT_NEAR(static_cast<double>(plan.slot_bytes + plan.host_slot_bytes) / row_bytes, tokens(plan), 100);
    EXPECT_LE(plan.total_bytes(), available);
    before = tokens(plan);
  }
  needs.slot_host_memory_bytes = 10'000 * kGib;
  const MemoryPlan most = PlanMemory(needs, available).value();
  EXPECT_LE(most.total_bytes(), available);
  EXPECT_LT(most.host_slot_bytes, 200 * kGib) << "no more than there is room for the index of";
  EXPECT_GT(RunningSequences(needs, most, 32768), 2 * RunningSequences(needs, none, 32768));
}

TEST(MemoryPlan, SaysWhatLiesInHostMemoryAndWhatIsMissing) {
  MemoryNeeds needs = InPlace();
  needs.slot_host_memory_bytes = 16 * kGib;
  EXPECT_THAT(PlanMemory(needs, 72 * kGib)->ToString(), HasSubstr(" more in 16384.0 MiB of pinned host memory"));
  needs.slot_memory_bytes = kGib / 2;
  EXPECT_THAT(std::string(PlanMemory(needs, 72 * kGib).status().message()), HasSubstr("--slot-host-memory"));
  needs.slot_memory_bytes = 8 * kGib;
  needs.slot_host_memory_bytes = 200 * kGib;
  const absl::Status too_much = PlanMemory(needs, 72 * kGib).status();
  EXPECT_EQ(too_much.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(too_much.message()), HasSubstr("--slot-host-memory, whose index"));
}

}  // namespace
}  // namespace winnow
