#include "inference_rank/step/layer_verifications.h"

#include <gtest/gtest.h>

#include <cstring>

namespace winnow {
namespace {

constexpr KvLayout kLayout{
    .num_layers = 2, .num_query_heads = 4, .num_kv_heads = 2, .head_dim = 3, .dtype = Dtype::kF32};
constexpr size_t kStateFloats = 2 * 3 + 2;  // o [group 2, head_dim 3], lse [2]

// The verification of one head, as a frame has it.
std::vector<std::byte> Payload(const wire::PartialEntry& entry, std::vector<float> state) {
  std::vector<std::byte> payload(sizeof entry + state.size() * sizeof(float));
  std::memcpy(payload.data(), &entry, sizeof entry);
  if (!state.empty()) std::memcpy(payload.data() + sizeof entry, state.data(), state.size() * sizeof(float));
  return payload;
}

absl::StatusOr<PartialEntryView> Read(const std::vector<std::byte>& payload) {
  size_t offset = 0;
  absl::StatusOr<PartialEntryView> view = ReadPartialEntry(payload, kStateFloats, &offset);
  EXPECT_TRUE(!view.ok() || offset == payload.size());
  return view;
}

wire::PartialEntry Verification(uint16_t kv_head, uint16_t flags = 0, uint32_t rows_read = 0) {
  return {.plan_row = 0, .kv_head = kv_head, .flags = flags, .mass_before = 1, .mass_after = 1, .rows_read = rows_read};
}

TEST(LayerVerifications, WaitsForEachHeadOnceAndKeepsTheStates) {
  LayerVerifications verifications(kLayout);
  EXPECT_EQ(verifications.state_floats(), kStateFloats);
  EXPECT_FALSE(verifications.Misses(0));
  verifications.BeginLayer(1, /*num_rows=*/3);
  verifications.Await(0, 1);
  verifications.Await(2, 0);
  verifications.Await(2, 1);
  EXPECT_TRUE(verifications.Misses(0));
  EXPECT_FALSE(verifications.Misses(1));

  const auto nothing = Payload(Verification(1), {});
  ASSERT_TRUE(verifications.Take(1, 0, Read(nothing).value()).ok());
  EXPECT_FALSE(verifications.Misses(0));
  EXPECT_TRUE(verifications.partials().empty()) << "a verification that corrects nothing";

  const auto corrected = Payload(Verification(0, wire::kPartialWidened, 5), {1, 2, 3, 4, 5, 6, 7, 8});
  ASSERT_TRUE(verifications.Take(1, 2, Read(corrected).value()).ok());
  EXPECT_TRUE(verifications.Misses(2)) << "one of its two heads";
  ASSERT_EQ(verifications.partials().size(), 1u);
  const PartialAttention& partial = verifications.partials()[0];
  EXPECT_EQ(partial.row, 2);
  EXPECT_EQ(partial.kv_head, 0);
  EXPECT_EQ(std::vector<float>(partial.o, partial.o + 6), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(std::vector<float>(partial.lse, partial.lse + 2), (std::vector<float>{7, 8}));
}

TEST(LayerVerifications, RefusesASecondVerificationAndOneOfAnotherLayer) {
  LayerVerifications verifications(kLayout);
  const auto payload = Payload(Verification(0), {});
  EXPECT_FALSE(verifications.Take(0, 0, Read(payload).value()).ok()) << "no layer has begun";
  verifications.BeginLayer(0, 1);
  EXPECT_FALSE(verifications.Take(0, 0, Read(payload).value()).ok()) << "nobody waits for it";
  verifications.Await(0, 0);
  EXPECT_FALSE(verifications.Take(1, 0, Read(payload).value()).ok());
  EXPECT_TRUE(verifications.Take(0, 0, Read(payload).value()).ok());
  EXPECT_FALSE(verifications.Take(0, 0, Read(payload).value()).ok());
  verifications.BeginLayer(1, 1);
  EXPECT_FALSE(verifications.Misses(0)) << "of the layer before";
}

TEST(PartialEntry, IsRefusedWhereItsPartsContradictEachOther) {
  EXPECT_FALSE(Read(Payload(Verification(0, /*flags=*/64, /*rows_read=*/1), std::vector<float>(kStateFloats))).ok());
  EXPECT_FALSE(
      Read(Payload(Verification(0, wire::kPartialWidened, /*rows_read=*/0), std::vector<float>(kStateFloats))).ok());
  EXPECT_FALSE(Read(Payload(Verification(0, /*flags=*/0, /*rows_read=*/1), {})).ok());
  EXPECT_FALSE(Read(Payload(Verification(0, wire::kPartialWidened, 1), std::vector<float>(kStateFloats - 1))).ok());
}

}  // namespace
}  // namespace winnow
