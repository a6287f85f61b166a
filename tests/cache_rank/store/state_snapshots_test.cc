// What a cache rank keeps of states of hybrid models: whole ones come back as they came, the newest two are kept, and
// what is out of order, too long or damaged is refused.
#include "cache_rank/store/state_snapshots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache_rank/store/kv_room.h"
#include "tests/cache_rank/store/sequence_store_fixture.h"
#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

std::vector<std::byte> StateOf(uint32_t seed, size_t bytes) {
  std::vector<std::byte> state(bytes);
  for (size_t i = 0; i < bytes; ++i) state[i] = static_cast<std::byte>((seed * 131 + i * 7 + i / 251) & 255);
  return state;
}

class StateSnapshotsTest : public SequenceStoreTest {
 protected:
  static constexpr size_t kPiece = 1000;

  void SetUp() override {
    SequenceStoreTest::SetUp();
    Restart(400);
    bytes_ = 3 * pool_->block_bytes() + 12;  // four blocks
  }
  // A sequence that keeps states, with number 1.
  CachedSequence* Open() {
    return store_
        ->Open(1, {.sequence_id = 1,
                   .spec = test::SmallSpec(Predictor::kDense),
                   .max_positions = 300,
                   .prompt_tokens = 100,
                   .state_bytes = bytes_})
        .value();
  }
  absl::Status Put(StateSnapshots& states, uint32_t position) const {
    const std::vector<std::byte> state = StateOf(position, bytes_);
    for (size_t offset = 0; offset < bytes_; offset += kPiece) {
      const size_t count = std::min(kPiece, bytes_ - offset);
      const auto taken = states.Take(position, offset, std::span(state).subspan(offset, count));
      if (!taken.ok()) return taken.status();
      EXPECT_EQ(*taken, offset + count == bytes_);
    }
    return absl::OkStatus();
  }
  void ExpectIs(const StateSnapshots& states, uint32_t position) const {
    const StateSnapshot* const found = states.Find(position);
    ASSERT_NE(found, nullptr) << position;
    EXPECT_TRUE(found->IsIntact(states.block_bytes()));
    std::vector<std::byte> read(bytes_);
    for (size_t offset = 0; offset < bytes_; offset += 777) {
      found->Read(offset, std::span(read).subspan(offset, std::min<size_t>(777, bytes_ - offset)),
                  states.block_bytes());
    }
    EXPECT_EQ(read, StateOf(position, bytes_));
  }

  size_t bytes_ = 0;
};

TEST_F(StateSnapshotsTest, KeepsTheTwoNewestInWhatWasReserved) {
  const size_t free = pool_->free();
  {
    StateSnapshots states = StateSnapshots::Create(pool_.get(), bytes_).value();
    EXPECT_EQ(pool_->free(), free - 8);
    for (const uint32_t position : {5u, 9u, 64u}) ASSERT_THAT(Put(states, position), IsOkStatus());
    EXPECT_EQ(pool_->free(), free - 8);
    EXPECT_EQ(states.Find(5), nullptr);
    ExpectIs(states, 9);
    ExpectIs(states, 64);
    EXPECT_EQ(states.newest_position(), 64u);
    EXPECT_EQ(states.FindBelow(63)->position(), 9u);
    EXPECT_EQ(states.FindBelow(8), nullptr);
    states.Truncate(40);
    EXPECT_EQ(states.newest_position(), 9u);
    ASSERT_THAT(Put(states, 40), IsOkStatus());
    ExpectIs(states, 40);
  }
  EXPECT_EQ(pool_->free(), free);
}

TEST_F(StateSnapshotsTest, AsManySequencesAreAdmittedAsThereIsRoomForTheirStates) {
  const SelectionSpec spec = test::SmallSpec(Predictor::kDense);
  const auto room = RoomFor(shape_.layout, spec, 60, 400 * BlockBytes(shape_.layout), 0, bytes_);
  ASSERT_THAT(room, IsOkStatus());
  uint64_t admitted = 0;
  while (store_
             ->Open(1, {.sequence_id = admitted + 1,
                        .spec = spec,
                        .max_positions = 60,
                        .prompt_tokens = 20,
                        .state_bytes = bytes_})
             .ok()) {
    ++admitted;
  }
  EXPECT_EQ(admitted, room->sequences());
  EXPECT_LT(admitted, RoomFor(shape_.layout, spec, 60, 400 * BlockBytes(shape_.layout))->sequences());
}

TEST_F(StateSnapshotsTest, WhatIsOutOfOrderOrTooLongIsRefused) {
  StateSnapshots states = StateSnapshots::Create(pool_.get(), bytes_).value();
  const std::vector<std::byte> state = StateOf(1, bytes_ + 1);
  const auto take = [&](uint32_t position, size_t offset, size_t count) {
    return states.Take(position, offset, std::span(state).first(count)).status();
  };
  const auto refused = FailsWith(absl::StatusCode::kInvalidArgument, testing::_);
  EXPECT_THAT(take(7, 10, 10), refused) << "nothing came before it";
  EXPECT_THAT(take(7, 0, 0), refused);
  EXPECT_THAT(take(7, 0, bytes_ + 1), refused);
  EXPECT_THAT(take(0, 0, 10), refused) << "before the first position there is nothing to keep";
  EXPECT_THAT(take(7, 0, 10), IsOkStatus());
  EXPECT_THAT(take(7, 11, 10), refused) << "a gap";
  EXPECT_THAT(take(8, 10, 10), refused) << "of another position";
  EXPECT_THAT(take(7, bytes_, 10), refused);
  EXPECT_THAT(take(7, ~size_t{0}, 10), refused);
  EXPECT_THAT(take(7, 10, 10), IsOkStatus()) << "it goes on";
  ASSERT_THAT(Put(states, 8), IsOkStatus()) << "another one takes its place";
  EXPECT_THAT(take(8, 0, 10), refused) << "that is there";
  EXPECT_THAT(take(7, 0, 10), refused) << "older than that";
  EXPECT_EQ(states.Find(7), nullptr);
  ExpectIs(states, 8);
}

TEST_F(StateSnapshotsTest, ForksShareWhatThereIs) {
  StateSnapshots source = StateSnapshots::Create(pool_.get(), bytes_).value();
  ASSERT_THAT(Put(source, 10), IsOkStatus());
  StateSnapshots fork = source.Fork().value();
  for (const uint32_t position : {20u, 30u, 40u, 50u}) ASSERT_THAT(Put(source, position), IsOkStatus());
  ExpectIs(fork, 10);
  EXPECT_EQ(source.Find(10), nullptr);
  for (const uint32_t position : {15u, 16u, 17u}) ASSERT_THAT(Put(fork, position), IsOkStatus());
  ExpectIs(fork, 17);
  ExpectIs(source, 50);
}

TEST_F(StateSnapshotsTest, WithoutRoomTheOlderOneStays) {
  StateSnapshots source = StateSnapshots::Create(pool_.get(), bytes_).value();
  ASSERT_THAT(Put(source, 10), IsOkStatus());
  ASSERT_THAT(Put(source, 20), IsOkStatus());
  StateSnapshots fork = source.Fork().value();
  const KvBlockReservation rest = pool_->Reserve(pool_->free()).value();
  // Both of its own are the fork's, too, so that nothing comes back with them.
  for (const uint32_t position : {30u, 40u, 50u}) {
    for (size_t offset = 0; offset < bytes_; offset += kPiece) {
      const std::vector<std::byte> piece(std::min(kPiece, bytes_ - offset));
      ASSERT_THAT(source.Take(position, offset, piece).status(), IsOkStatus());
    }
  }
  EXPECT_GE(source.newest_position(), 20u);
  ExpectIs(fork, 20);
}

TEST_F(StateSnapshotsTest, ADamagedOneIsNotGoneOnWith) {
  CachedSequence* const sequence = Open();
  Append(sequence->kv, 7, 0, 200);
  ASSERT_THAT(Put(sequence->states, 120), IsOkStatus());
  ASSERT_THAT(Put(sequence->states, 184), IsOkStatus());
  EXPECT_EQ(sequence->StateRestart(199, bytes_, false), 184u);
  EXPECT_EQ(sequence->StateRestart(183, bytes_, false), 120u);
  EXPECT_EQ(sequence->StateRestart(199, bytes_ + 4, false), 0u) << "of another model";
  // A bit of every block of both.
  for (uint32_t number = 0; number < pool_->total(); ++number) {
    if (!pool_->in_use(number) || pool_->checksums().num_rows(number) > 0) continue;
    auto* const bytes = const_cast<std::byte*>(pool_->stored_rows(number));
    bytes[3] ^= std::byte{16};
  }
  EXPECT_EQ(sequence->StateRestart(199, bytes_, false), 0u);
  EXPECT_EQ(sequence->states.newest_position(), 0u) << "they are forgotten";
}

TEST_F(StateSnapshotsTest, ASequenceRestartsWhereItsStateIs) {
  CachedSequence* const sequence = Open();
  Append(sequence->kv, 7, 0, 64);
  ASSERT_THAT(Put(sequence->states, 32), IsOkStatus());
  // Within the prompt, at a block's end, and only where the caller's rows are of the same kind.
  EXPECT_EQ(sequence->StateRestart(99, bytes_, false), 0u);
  EXPECT_EQ(sequence->StateRestart(99, bytes_, true), 32u);
  Append(sequence->kv, 7, 64, 76);
  ASSERT_THAT(Put(sequence->states, 128), IsOkStatus());
  ASSERT_TRUE(store_->Attach(2, 1, 139, 0, "", bytes_).ok());
  EXPECT_EQ(sequence->kv.watermark(), 128u);
  ASSERT_TRUE(store_->Attach(3, 1, 127, 0, "", bytes_).ok());
  EXPECT_EQ(sequence->kv.watermark(), 32u) << "that of the prompt";
  // Without a state the prompt begins again.
  ASSERT_TRUE(store_->Attach(4, 1, 20, 0, "", bytes_).ok());
  EXPECT_EQ(sequence->kv.watermark(), 0u);
}

}  // namespace
}  // namespace winnow
