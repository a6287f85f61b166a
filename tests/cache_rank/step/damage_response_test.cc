// What a cache rank sends of stored rows is what was written, or nothing, and the peer hears that the sequence is gone.
#include "cache_rank/step/damage_response.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "tests/cache_rank/fake_rank.h"

namespace winnow::test {
namespace {

constexpr uint32_t kPrompt = 150;

class DamageResponseTest : public testing::Test {
 protected:
  void Start(size_t fast_bytes = 0) {
    rank_.reset();
    TestCluster::Options options{.data_plane = TestCluster::SmallDataPlane()};
    options.data_plane.tiers.fast.memory_bytes = fast_bytes;
    options.data_plane.on_damage = [this](uint64_t, const std::string& what) { told_.push_back(what); };
    cluster_ = std::make_unique<TestCluster>(options);
    rank_ = cluster_->NewRank();
  }
  ~DamageResponseTest() override { rank_.reset(); }

  const KvLayout& layout() const { return cluster_->shape.layout; }
  uint32_t Draw(uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random_); }
  const SequenceKv& kv(const FakeSequence& sequence) { return cluster_->data_plane->store().Find(sequence.id)->kv; }
  std::byte* Row(const FakeSequence& sequence, int layer, int head, uint32_t position) {
    const void* const block = kv(sequence).row_blocks(layer, head)[position / kBlockTokens];
    return static_cast<std::byte*>(const_cast<void*>(block)) + position % kBlockTokens * layout().row_bytes();
  }
  void FlipABit(std::byte* row) {
    const uint32_t bit = Draw(static_cast<uint32_t>(8 * layout().row_bytes()));
    row[bit / 8] ^= std::byte{1} << bit % 8;
  }
  bool IsLost(const FakeSequence& sequence) const {
    return std::count(rank_->fenced.begin(), rank_->fenced.end(), std::pair<uint64_t, uint32_t>{sequence.id, 0}) > 0;
  }
  bool HasDeltas(const FakeSequence& sequence, int layer) const {
    for (int head = 0; head < layout().num_kv_heads; ++head) {
      if (!sequence.deltas.contains({sequence.next_position, layout().list(layer, head)})) return false;
    }
    return true;
  }
  // One step of both, of which the first may be lost.
  void DecodeBoth(FakeSequence& victim, FakeSequence& other) {
    rank_->SendPlan({&victim, &other});
    for (int layer = 0; layer < layout().num_layers; ++layer) {
      rank_->SendLayer(layer);
      ASSERT_TRUE(cluster_->PumpUntil(
          *rank_, [&] { return HasDeltas(other, layer) && (IsLost(victim) || HasDeltas(victim, layer)); }))
          << "layer " << layer << " of position " << other.next_position;
    }
    ASSERT_TRUE(cluster_->PumpUntil(*rank_, [&] {
      return rank_->watermarks[other.id] > other.next_position &&
             (IsLost(victim) || rank_->watermarks[victim.id] > victim.next_position);
    }));
    rank_->FinishPlan();
  }

  std::mt19937 random_{3};
  std::unique_ptr<TestCluster> cluster_;
  std::unique_ptr<FakeRank> rank_;
  std::vector<std::string> told_;
};

// A row is flipped that the step is about to send, of 1,000 steps, and no other sequence of the step hears of it. That
// every byte that comes is right is what the rank expects of each delta.
TEST_F(DamageResponseTest, OfAThousandFlippedRowsThatAStepReadsNoneLeaves) {
  SelectionSpec spec = SmallSpec(Predictor::kExact);
  spec.transfer = Transfer::kFull;  // each step reads all that it selects
  for (const size_t fast_bytes : {size_t{0}, size_t{4} << 20}) {
    Start(fast_bytes);
    FakeSequence* other = nullptr;
    uint64_t id = 1;
    for (int found = 0; found < 500;) {
      if (other != nullptr && other->next_position > 350) {
        ASSERT_TRUE(cluster_->data_plane->ReleaseSequence(other->id, other->attach_epoch).ok());
        other = nullptr;
      }
      if (other == nullptr) other = rank_->Prefill(id++, 77, spec, kPrompt);
      FakeSequence* victim = rank_->Prefill(id++, 78, spec, kPrompt);
      DecodeBoth(*victim, *other);
      const int layer = static_cast<int>(Draw(layout().num_layers)),
                head = static_cast<int>(Draw(layout().num_kv_heads));
      const std::vector<uint32_t>& selected = victim->selections.at(kPrompt)[layout().list(layer, head)];
      ASSERT_FALSE(selected.empty());
      const uint32_t position = selected[Draw(static_cast<uint32_t>(selected.size()))];
      if (fast_bytes > 0) kv(*victim).SettleRows(layer);
      const uint32_t block = kv(*victim).block_number(layer, head, position / kBlockTokens);
      FlipABit(Row(*victim, layer, head, position));
      std::byte* copy =
          fast_bytes == 0 ? nullptr : const_cast<RowTiers*>(cluster_->data_plane->tiers())->fast().Find(block);
      if (copy != nullptr) FlipABit(copy + position % kBlockTokens * layout().row_bytes());
      const uint32_t before = other->next_position;
      DecodeBoth(*victim, *other);
      ASSERT_EQ(rank_->Errors(), "");
      ASSERT_EQ(other->next_position, before + 1);
      if (!IsLost(*victim)) {  // it was not selected this time
        const std::vector<uint32_t>& now = victim->selections.at(kPrompt + 1)[layout().list(layer, head)];
        ASSERT_EQ(std::count(now.begin(), now.end(), position), 0) << "sent, and nobody noticed";
        ASSERT_TRUE(cluster_->data_plane->ReleaseSequence(victim->id, victim->attach_epoch).ok());
        continue;
      }
      ++found;
      EXPECT_EQ(cluster_->data_plane->store().Find(victim->id), nullptr);
      EXPECT_EQ(cluster_->metrics.damaged_sequences.get(), static_cast<uint64_t>(found));
      EXPECT_NE(told_.back().find(absl::StrCat("sequence ", victim->id, ", layer ", layer, ", kv head ", head,
                                               ", position ", position)),
                std::string::npos)
          << told_.back();
    }
    EXPECT_FALSE(IsLost(*other));
    for (uint32_t p = kPrompt; p < other->next_position; p += 40) {
      for (int layer = 0; layer < layout().num_layers; ++layer) {
        EXPECT_EQ(cluster_->CheckSelection(*other, p, layer, 0, other->selections.at(p)[layout().list(layer, 0)]), "");
      }
    }
  }
}

TEST_F(DamageResponseTest, ADamagedRowEndsTheRefillOfAnAttach) {
  Start();
  for (uint64_t id = 1; id <= 50; ++id) {
    const FakeSequence old = *rank_->Prefill(id, id, SmallSpec(Predictor::kDepth), kPrompt);
    cluster_->PumpCacheRank();
    FlipABit(Row(old, static_cast<int>(Draw(layout().num_layers)), static_cast<int>(Draw(layout().num_kv_heads)),
                 kPrompt - 1 - Draw(32)));
    rank_->errors.clear();
    const FakeSequence* attached = rank_->Attach(old, 0 == id % 2 ? kPrompt : UINT32_MAX);
    if (attached->attach_position == 0) continue;  // from a new prefill: no row is read
    EXPECT_TRUE(IsLost(*attached));
    EXPECT_EQ(attached->refill_done_at, kNoPosition) << "a rank must not think that it has all rows";
    EXPECT_EQ(rank_->Errors(), "no RefillDone; ");
  }
}

TEST_F(DamageResponseTest, CorrectionsAreNotMadeOfDamagedRows) {
  Start();
  SelectionSpec spec = SmallSpec(Predictor::kLast);
  spec.correction = Correction::kRemote;
  FakeSequence* victim = rank_->Prefill(1, 5, spec, kPrompt);
  ASSERT_TRUE(rank_->Decode({victim})) << rank_->Errors();
  const std::map<size_t, FakeSequence::Verification> sound = victim->verifications.at(kPrompt);
  ASSERT_TRUE(std::any_of(sound.begin(), sound.end(),
                          [](const auto& verification) { return verification.second.entry.rows_read > 0; }));
  for (int layer = 0; layer < layout().num_layers; ++layer) {
    for (int head = 0; head < layout().num_kv_heads; ++head) {
      for (uint32_t p = 0; p < kPrompt; ++p) FlipABit(Row(*victim, layer, head, p));
    }
  }
  EXPECT_FALSE(rank_->Decode({victim}));
  EXPECT_TRUE(IsLost(*victim));
  for (const auto& [list, verification] : victim->verifications[kPrompt + 1])
    EXPECT_EQ(verification.entry.rows_read, 0u);
}

TEST_F(DamageResponseTest, ASequenceThatIsGivenUpGivesEverythingBack) {
  Start();
  FakeSequence* victim = rank_->Prefill(1, 5, SmallSpec(Predictor::kExact), kPrompt);
  cluster_->PumpCacheRank();
  kv(*victim).NoteDamage({1, 0, 40});
  cluster_->PumpCacheRank();
  rank_->Progress();
  EXPECT_TRUE(IsLost(*victim));
  EXPECT_EQ(cluster_->data_plane->blocks().used(), 0u);
  EXPECT_EQ(cluster_->data_plane->blocks().reserved(), 0u);
  EXPECT_EQ(rank_->Errors(), "");
}

}  // namespace
}  // namespace winnow::test
