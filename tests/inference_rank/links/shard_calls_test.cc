// Control calls to the real services of several cache ranks: all of a sequence's shards, or none.
#include "inference_rank/links/shard_calls.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <thread>

#include "common/selection/shard_spec.h"
#include "inference_rank/links/shard_release.h"
#include "tests/inference_rank/served_cache_rank.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr uint32_t kPrompt = 96;

v1::KvShape Shape() {
  v1::KvShape shape;
  shape.set_num_layers(2);
  shape.set_num_query_heads(4);
  shape.set_num_kv_heads(2);
  shape.set_head_dim(8);
  shape.set_kv_dtype(v1::KV_DTYPE_F32);
  for (int i = 0; i < 4; ++i) shape.add_rope_inv_freq(1.0f / (1 + i));
  shape.set_rope_attention_factor(1);
  shape.set_attention_scale(0.3f);
  return shape;
}

class ShardCallsTest : public testing::Test {
 protected:
  explicit ShardCallsTest(size_t second_memory_bytes = size_t{4} << 20)
      : first_("cache-0", 61, size_t{4} << 20),
        second_("cache-1", 62, second_memory_bytes),
        transport_(NewInprocTransport({.incarnation = 60})),
        links_(
            LinkOptions(), *transport_,
            [](const std::function<void()>& work) {
              work();
              return true;
            },
            [] {}),
        calls_{links_, kLayout, milliseconds(5000)} {
    const std::vector<KvShard> shards = CutIntoShards(kLayout, 2).value();
    places_ = {{first_.identity, shards[0]}, {second_.identity, shards[1]}};
  }
  ~ShardCallsTest() override { links_.Clear(); }

  LinkTable::Options LinkOptions() {
    LinkTable::Options options;
    options.identity.set_rank("inference-0");
    options.fingerprint = first_.rank->Fingerprint();
    *options.fingerprint.mutable_kv_shape() = Shape();
    return options;
  }
  v1::OpenSequenceRequest OpenRequest(uint64_t id, uint32_t max_positions = 200) {
    v1::OpenSequenceRequest request;
    request.set_sequence_id(id);
    request.set_max_positions(max_positions);
    request.set_prompt_tokens(kPrompt);
    for (uint32_t p = 0; p < kPrompt; ++p) request.add_prompt_token_ids(p);
    request.set_prefix_salt("salt");
    return request;
  }
  absl::StatusOr<ShardCalls::Attached> Open(uint64_t id, uint32_t max_positions = 200) {
    return calls_.Open(places_, kDense, OpenRequest(id, max_positions));
  }
  static v1::AttachSequenceRequest AttachAt(uint32_t max_restart_position) {
    v1::AttachSequenceRequest request;
    request.set_sequence_id(7);
    request.set_max_restart_position(max_restart_position);
    request.set_prefix_salt("salt");
    return request;
  }
  // Sends rows [first, first + count) of all layers of a shard.
  void Append(const ShardLink& shard, uint64_t id, uint32_t first, uint32_t count) {
    for (int layer = shard.shard.first_layer; layer <= shard.shard.last_layer(); ++layer) {
      SendBuffer buffer =
          shard.link->channel()->Allocate(count * shard.shard.num_kv_heads * kLayout.row_bytes()).value();
      std::memset(buffer.payload().data(), 0, buffer.payload().size());
      wire::FrameHeader header{};
      header.type = wire::FrameType::kAppendRange;
      header.sequence_id = id;
      header.attach_epoch = shard.attach_epoch;
      header.apply_position = first;
      header.layer_first = static_cast<uint16_t>(layer);
      header.row_count = count;
      ASSERT_TRUE(shard.link->channel()->Post(header, std::move(buffer)).ok());
    }
  }
  // Frames and calls come on two ways: waits until so many rows have come.
  static void AwaitRows(const test::ServedCacheRank& served, uint64_t rows) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (served.Snapshot().appended_rows < rows && std::chrono::steady_clock::now() < give_up) {
      std::this_thread::yield();
    }
    EXPECT_EQ(served.Snapshot().appended_rows, rows);
  }
  // The first rows of a sequence that has none yet, so many of each shard.
  void StoreRows(const ShardCalls::Attached& opened, uint64_t id, uint32_t of_first, uint32_t of_second) {
    Append(opened.shards[0], id, 0, of_first);
    Append(opened.shards[1], id, 0, of_second);
    AwaitRows(first_, 2 * of_first);
    AwaitRows(second_, 2 * of_second);
  }
  static uint64_t SequencesOn(const test::ServedCacheRank& served) {
    const CacheRankSnapshot snapshot = served.Snapshot();
    return snapshot.active_sequences + snapshot.detached_sequences;
  }

  static inline const KvLayout kLayout{2, 4, 2, 8, Dtype::kF32};
  static inline const SelectionSpec kDense{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  test::ServedCacheRank first_, second_;
  std::unique_ptr<Transport> transport_;
  LinkTable links_;
  const ShardCalls calls_;
  std::vector<ShardPlace> places_;
};

TEST_F(ShardCallsTest, OpensAndFreesAllShards) {
  const auto opened = Open(7);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->position, 0u);
  ASSERT_EQ(opened->shards.size(), 2u);
  EXPECT_EQ(first_.Snapshot().sharded_sequences, 1u);
  EXPECT_EQ(second_.Snapshot().sharded_sequences, 1u);
  calls_.Release(opened->shards, 7, /*detach=*/false);
  EXPECT_EQ(SequencesOn(first_) + SequencesOn(second_), 0u);
}

TEST_F(ShardCallsTest, AllShardsRestartWhereTheShortestDoes) {
  const auto opened = Open(7);
  ASSERT_TRUE(opened.ok()) << opened.status();
  StoreRows(*opened, 7, kPrompt + 9, kPrompt + 5);
  const auto attached = calls_.Attach(places_, AttachAt(kPrompt + 20));
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(attached->position, kPrompt + 5);
  EXPECT_EQ(attached->shards[0].attach_epoch, 3u) << "once more, at the position of the other";
  EXPECT_EQ(attached->shards[1].attach_epoch, 2u);
  // Both go on there: a row at the next position is stored, one behind it is refused.
  Append(attached->shards[0], 7, kPrompt + 5, 1);
  AwaitRows(first_, 2 * (kPrompt + 9) + 2);
}

TEST_F(ShardCallsTest, APromptGoesOnBehindTheBlocksThatAllShardsHave) {
  const auto opened = Open(7);
  StoreRows(*opened, 7, kPrompt + 3, 70);
  auto attached = calls_.Attach(places_, AttachAt(kPrompt + 20));
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(attached->position, 32u) << "whole blocks, without what the first selections look back on";
  EXPECT_EQ(attached->cached_tokens, 0u);
  for (const ShardLink& shard : attached->shards) {
    ASSERT_TRUE(calls_.PushPrefix({&shard, 1}, 7, 0, 2, {.end = 32}).ok());
    Append(shard, 7, 32, kPrompt - 32);
  }
  AwaitRows(first_, 2 * (kPrompt + 3 + kPrompt - 32));
  AwaitRows(second_, 2 * (70 + kPrompt - 32));
  attached = calls_.Attach(places_, AttachAt(kPrompt + 20));
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(attached->position, kPrompt) << "it is complete";

  v1::AttachSequenceRequest without_salt = AttachAt(kPrompt - 1);
  without_salt.clear_prefix_salt();
  attached = calls_.Attach(places_, without_salt);
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(attached->position, 0u) << "who does not say what its rows depend on begins anew";
}

TEST_F(ShardCallsTest, APromptIsNotGoneOnWithByRanksThatComputeItOtherwise) {
  const auto opened = Open(7);
  StoreRows(*opened, 7, 70, 70);
  v1::AttachSequenceRequest request = AttachAt(kPrompt + 20);
  request.set_prefix_salt("other numerics");
  EXPECT_EQ(calls_.Attach(places_, request).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ShardCallsTest, APromptThatOneShardLacksIsComputedAgainForAll) {
  const auto opened = Open(7);
  StoreRows(*opened, 7, kPrompt + 3, 31);
  const auto attached = calls_.Attach(places_, AttachAt(kPrompt + 20));
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(attached->position, 0u);
}

TEST_F(ShardCallsTest, WhatIsLeftOfALostSequenceIsFreed) {
  const auto opened = Open(7);
  calls_.Release({&opened->shards[1], 1}, 7, /*detach=*/false);
  const auto attached = calls_.Attach(places_, AttachAt(10));
  EXPECT_EQ(attached.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(attached.status().message()), HasSubstr("cache-1"));
  EXPECT_EQ(SequencesOn(first_), 0u);
}

TEST_F(ShardCallsTest, ACacheRankWithAnotherShardIsNotAttachedTo) {
  ASSERT_TRUE(Open(7).ok());
  std::swap(places_[0].shard, places_[1].shard);
  const auto attached = calls_.Attach(places_, AttachAt(10));
  EXPECT_EQ(attached.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(attached.status().message()), HasSubstr("has another shard of sequence 7"));
}

// One has evicted what the other one still has.
TEST_F(ShardCallsTest, TheCachedPrefixIsTheShortestOfAll) {
  const auto opened = Open(7);
  for (const ShardLink& shard : opened->shards) Append(shard, 7, 0, kPrompt);
  AwaitRows(first_, 2 * kPrompt);
  AwaitRows(second_, 2 * kPrompt);
  calls_.Release(opened->shards, 7, /*detach=*/false);
  const auto again = Open(8);
  ASSERT_TRUE(again.ok()) << again.status();
  const uint32_t cached = again->position;
  EXPECT_GT(cached, 0u);
  calls_.Release(again->shards, 8, /*detach=*/false);

  // The second rank's memory is taken by a sequence that leaves no room for idle prefixes.
  v1::OpenSequenceRequest large = OpenRequest(9, 10'000);
  large.clear_prompt_token_ids();
  large.set_max_positions(static_cast<uint32_t>(second_.Snapshot().blocks_total / 2 * kBlockTokens));
  const auto filling = calls_.Open(std::span(places_).subspan(1), kDense, large);
  ASSERT_TRUE(filling.ok()) << filling.status();
  EXPECT_GT(second_.Snapshot().prefix_evictions, 0u);
  calls_.Release(filling->shards, 9, /*detach=*/false);
  const auto uneven = Open(10);
  ASSERT_TRUE(uneven.ok()) << uneven.status();
  EXPECT_EQ(uneven->position, 0u);
  for (const ShardLink& shard : uneven->shards) Append(shard, 10, 0, kPrompt);  // both begin at 0
  AwaitRows(first_, 2 * 2 * kPrompt);
}

TEST_F(ShardCallsTest, ForksAllShardsAtOnePosition) {
  const auto opened = Open(7);
  for (const ShardLink& shard : opened->shards) Append(shard, 7, 0, kPrompt + 1);
  AwaitRows(first_, 2 * (kPrompt + 1));
  AwaitRows(second_, 2 * (kPrompt + 1));
  v1::ForkSequenceRequest request;
  request.set_source_sequence_id(7);
  request.set_sequence_id(8);
  request.set_max_positions(200);
  const auto forked = calls_.Fork(opened->shards, request, kPrompt + 1);
  ASSERT_TRUE(forked.ok()) << forked.status();
  EXPECT_EQ(SequencesOn(first_) + SequencesOn(second_), 4u);
  request.set_sequence_id(9);
  EXPECT_EQ(calls_.Fork(opened->shards, request, kPrompt).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(SequencesOn(first_) + SequencesOn(second_), 4u) << "nothing is left of it";
}

TEST_F(ShardCallsTest, ADetachedSequenceIsThereToBeAttached) {
  const auto opened = Open(7);
  calls_.Release(opened->shards, 7, /*detach=*/true);
  EXPECT_EQ(first_.Snapshot().detached_sequences, 1u);
  EXPECT_TRUE(calls_.Attach(places_, AttachAt(10)).ok());
  EXPECT_EQ(first_.Snapshot().active_sequences, 1u);
}

TEST_F(ShardCallsTest, SaysWhichCacheRanksWereNotReachedSoThatTheyCanBeToldLater) {
  const auto opened = Open(7);
  const ShardCalls impatient{links_, kLayout, milliseconds(-1000)};  // every call is too late
  const std::vector<ShardLink> unanswered = impatient.Release(opened->shards, 7, /*detach=*/false);
  ASSERT_EQ(unanswered.size(), 2u);
  EXPECT_TRUE(calls_.Release(unanswered, 7, /*detach=*/false).empty());
  EXPECT_EQ(SequencesOn(first_) + SequencesOn(second_), 0u);
  EXPECT_TRUE(calls_.Release(unanswered, 7, /*detach=*/false).empty()) << "what is not there was freed";
}

// A cache rank detaches by itself what was attached over a link that ends. That nobody comes back it must be told.
TEST_F(ShardCallsTest, WhatIsOverIsFreedAlsoWhenItsLinkHasEnded) {
  const auto over = Open(7), left = Open(8);
  const std::vector<ShardRelease> releases = {ShardRelease(over->shards[0], 7, /*detach=*/false),
                                              ShardRelease(over->shards[1], 7, /*detach=*/false)};
  const ShardRelease detached(left->shards[0], 8, /*detach=*/true);
  EXPECT_TRUE(detached.IsNeeded());
  for (const ShardLink& shard : over->shards) shard.link->MarkDead();
  EXPECT_FALSE(detached.IsNeeded());
  EXPECT_EQ(calls_.Release(over->shards, 7, /*detach=*/false).size(), 2u) << "nobody waits for them here";
  EXPECT_TRUE(calls_.Release(left->shards, 8, /*detach=*/true).empty());
  for (const ShardRelease& release : releases) EXPECT_TRUE(release.Call(milliseconds(5000)));
  EXPECT_EQ(SequencesOn(first_), 1u);
  EXPECT_EQ(SequencesOn(second_), 1u);
}

// A process that has taken the address of another counts epochs anew.
TEST_F(ShardCallsTest, WhatAnotherStartOfTheCacheRankHeldIsNotThisOnes) {
  const auto opened = Open(7);
  v1::ReleaseSequenceRequest request;
  request.set_sequence_id(7);
  request.set_attach_epoch(opened->shards[0].attach_epoch);
  request.set_channel_id(opened->shards[0].link->channel_id() ^ uint64_t{1} << 32);
  const auto stub = v1::CacheService::NewStub(opened->shards[0].link->grpc_channel());
  grpc::ClientContext context;
  v1::ReleaseSequenceResponse response;
  EXPECT_TRUE(stub->ReleaseSequence(&context, request, &response).ok());
  EXPECT_EQ(SequencesOn(first_), 1u);
}

// Without an answer it is not known whether a sequence was opened: if it was, it is nobody's.
TEST_F(ShardCallsTest, WhatMayHaveBeenOpenedIsReleasedLater) {
  ASSERT_TRUE(Open(6).ok());  // the links are there
  std::vector<ShardLink> later;
  const ShardCalls impatient{links_, kLayout, milliseconds(-1000),
                             [&](std::vector<ShardLink> shards, uint64_t sequence_id, bool detach) {
                               EXPECT_EQ(sequence_id, 7u);
                               EXPECT_FALSE(detach);
                               later = std::move(shards);
                             }};
  EXPECT_EQ(impatient.Open(places_, kDense, OpenRequest(7)).status().code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_EQ(later.size(), 1u) << "the second cache rank was not asked";
  const size_t before = SequencesOn(first_);
  EXPECT_TRUE(calls_.Release(later, 7, /*detach=*/false).empty());
  EXPECT_FALSE(Open(7).ok()) << "the call comes when nobody waits for it any more";
  EXPECT_EQ(SequencesOn(first_), before);
}

// Nor is it known whether a sequence was attached, and at which epoch.
TEST_F(ShardCallsTest, WhatMayHaveBeenAttachedIsDetachedLater) {
  const auto opened = Open(7);
  calls_.Release(opened->shards, 7, /*detach=*/true);
  std::vector<ShardLink> later;
  const ShardCalls impatient{links_, kLayout, milliseconds(-1000),
                             [&](std::vector<ShardLink> shards, uint64_t sequence_id, bool) {
                               EXPECT_EQ(sequence_id, 7u);
                               later = std::move(shards);
                             }};
  const auto attached = impatient.Attach(places_, AttachAt(10));
  EXPECT_EQ(attached.status().code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_EQ(later.size(), 2u);
  // On one cache rank the call was carried out, on the other it comes when it has been undone.
  v1::AttachSequenceRequest late;
  late.set_channel_id(later[0].link->channel_id());
  late.set_sequence_id(7);
  late.set_call(later[0].doubtful_call);
  *late.mutable_shard() = ToProto(later[0].shard);
  ASSERT_TRUE(later[0].link->Attach(late, milliseconds(5000)).ok());
  EXPECT_EQ(first_.Snapshot().active_sequences, 1u);
  EXPECT_TRUE(calls_.Release(later, 7, /*detach=*/true).empty());
  EXPECT_EQ(first_.Snapshot().active_sequences, 0u);
  EXPECT_EQ(first_.Snapshot().detached_sequences, 1u);
  late.set_channel_id(later[1].link->channel_id());
  late.set_call(later[1].doubtful_call);
  *late.mutable_shard() = ToProto(later[1].shard);
  EXPECT_EQ(later[1].link->Attach(late, milliseconds(5000)).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(second_.Snapshot().active_sequences, 0u);
  EXPECT_TRUE(calls_.Attach(places_, AttachAt(10)).ok()) << "later calls are as good as ever";
}

class OneCacheRankIsSmall : public ShardCallsTest {
 protected:
  OneCacheRankIsSmall() : ShardCallsTest(/*second_memory_bytes=*/size_t{64} << 10) {}
};

TEST_F(OneCacheRankIsSmall, WhatTheOthersHaveOpenedIsGivenBack) {
  const auto opened = Open(7, 2000);
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("cache-1"));
  EXPECT_EQ(SequencesOn(first_), 0u);
}

}  // namespace
}  // namespace winnow
