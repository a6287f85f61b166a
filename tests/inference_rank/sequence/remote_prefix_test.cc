#include "inference_rank/sequence/remote_prefix.h"

#include <gtest/gtest.h>

#include <cstring>

#include "common/base/kv_shard.h"
#include "kernels/params/attention.h"

namespace winnow {
namespace {

constexpr uint32_t kEndKey = 512, kPromptTokens = 2000;

const KvLayout kLayout{.num_layers = 3, .num_query_heads = 6, .num_kv_heads = 2, .head_dim = 8, .dtype = Dtype::kF32};

std::vector<ShardLink> Shards(int count) {
  std::vector<ShardLink> shards;
  const std::vector<KvShard> cuts = CutIntoShards(kLayout, count).value();
  for (const KvShard& cut : cuts) shards.push_back({.link = nullptr, .shard = cut});
  return shards;
}

struct Wave {
  explicit Wave(int num_shards) : shards(Shards(num_shards)), remote(kLayout, {.end_key = kEndKey}) {}

  float Value(uint32_t position, int i) const { return static_cast<float>(position * 1000 + i); }
  // Makes the queries of the next `count` tokens.
  void Make(uint32_t count) {
    const uint32_t first = remote.begun_end();
    for (uint32_t p = first; p < first + count; ++p) {
      for (int i = 0; i < 48; ++i) remote.queries(p)[i] = Value(p, i);
    }
    remote.SetBegun(first + count);
  }
  absl::Status Answer(size_t shard_index, uint32_t first, uint32_t count, int layer, uint32_t end_key = kEndKey) {
    const KvShard& shard = shards[shard_index].shard;
    const int head_floats = PrefillStateFloats(kLayout.head_dim), heads = shard.num_kv_heads * 3;
    std::vector<float> states;
    for (uint32_t p = first; p < first + count; ++p) {
      for (int i = 0; i < heads * head_floats; ++i)
        states.push_back(-Value(p, shard.first_kv_head * 3 * head_floats + i));
    }
    wire::FrameHeader header{};
    header.flags = end_key;
    header.apply_position = first;
    header.row_count = count;
    header.layer_first = static_cast<uint16_t>(layer);
    const ReceivedFrame frame(header, std::as_bytes(std::span(states)), nullptr, nullptr);
    return remote.Take(shards, shard_index, frame);
  }

  std::vector<ShardLink> shards;
  RemotePrefix remote;
};

TEST(RemotePrefix, SendsFramesAsTheyFillAndTheRestAtTheEndOfTheWave) {
  Wave wave(1);
  wave.remote.BeginWave(1, 700, 1300, kPromptTokens);
  wave.Make(200);
  EXPECT_EQ(wave.remote.NextFrame(wave.shards).count, 0u) << "not full";
  wave.Make(200);
  const RemotePrefix::Frame first = wave.remote.NextFrame(wave.shards);
  EXPECT_EQ(first.first, 700u);
  EXPECT_EQ(first.count, 256u);
  EXPECT_EQ(wave.remote.NextFrame(wave.shards).count, 0u);
  wave.Make(200);
  EXPECT_EQ(wave.remote.NextFrame(wave.shards).first, 956u);
  const RemotePrefix::Frame rest = wave.remote.NextFrame(wave.shards);
  EXPECT_EQ(rest.first, 1212u);
  EXPECT_EQ(rest.count, 88u);
  EXPECT_EQ(wave.remote.NextFrame(wave.shards).count, 0u);
  const wire::FrameHeader header = wave.remote.HeaderOf(rest);
  EXPECT_EQ(header.flags, kEndKey);
  EXPECT_EQ(header.layer_first, 1);
}

TEST(RemotePrefix, LeavesSoManyFramesUnanswered) {
  Wave wave(1);
  wave.remote.BeginWave(0, 700, 700 + 256 * 6, kPromptTokens + 1000);
  wave.Make(256 * 6);
  for (uint32_t i = 0; i < wire::kMaxPrefixFrames; ++i) EXPECT_EQ(wave.remote.NextFrame(wave.shards).count, 256u);
  EXPECT_EQ(wave.remote.NextFrame(wave.shards).count, 0u);
  ASSERT_TRUE(wave.Answer(0, 700, 256, 0).ok());
  EXPECT_EQ(wave.remote.NextFrame(wave.shards).count, 256u);
  EXPECT_EQ(wave.remote.NextFrame(wave.shards).count, 0u);
}

// Two halves of the heads: each shard is sent its heads' queries, and a token is ready when both have answered.
TEST(RemotePrefix, PutsTheStatesOfAllShardsTogether) {
  Wave wave(2);
  wave.remote.BeginWave(1, 700, 1000, kPromptTokens);
  wave.Make(300);
  const RemotePrefix::Frame frames[] = {wave.remote.NextFrame(wave.shards), wave.remote.NextFrame(wave.shards)};
  for (const ShardLink& shard : wave.shards) {
    ASSERT_EQ(wave.remote.PayloadBytes(frames[1], shard.shard), 44u * 24 * sizeof(float));
    std::vector<float> payload(44 * 24);
    wave.remote.WritePayload(frames[1], shard.shard, reinterpret_cast<std::byte*>(payload.data()));
    for (uint32_t i = 0; i < 44; ++i) {
      for (int j = 0; j < 24; ++j)
        ASSERT_EQ(payload[i * 24 + j], wave.Value(956 + i, shard.shard.first_kv_head * 24 + j));
    }
  }
  ASSERT_TRUE(wave.Answer(1, 700, 256, 1).ok());
  EXPECT_EQ(wave.remote.ready_end(), 700u);
  ASSERT_TRUE(wave.Answer(0, 956, 44, 1).ok());
  ASSERT_TRUE(wave.Answer(1, 956, 44, 1).ok());
  EXPECT_EQ(wave.remote.ready_end(), 700u) << "in the order of positions";
  ASSERT_TRUE(wave.Answer(0, 700, 256, 1).ok());
  EXPECT_EQ(wave.remote.ready_end(), 1000u);
  for (uint32_t p = 700; p < 1000; ++p) {
    for (int i = 0; i < 60; ++i) ASSERT_EQ(wave.remote.states(p)[i], -wave.Value(p, i));
  }
}

TEST(RemotePrefix, AsksInTheLastLayerForThePromptsLastTokenAlone) {
  Wave wave(1);
  wave.remote.BeginWave(2, 1900, kPromptTokens, kPromptTokens);
  wave.Make(99);
  EXPECT_EQ(wave.remote.NextFrame(wave.shards).count, 0u);
  EXPECT_EQ(wave.remote.ready_end(), 1999u);
  wave.Make(1);
  EXPECT_EQ(wave.remote.ready_end(), 1999u);
  EXPECT_EQ(wave.remote.NextFrame(wave.shards).first, 1999u);
  ASSERT_TRUE(wave.Answer(0, 1999, 1, 2).ok());
  EXPECT_EQ(wave.remote.ready_end(), 2000u);
  // A wave that does not reach the end asks nothing.
  wave.remote.BeginWave(2, 1000, 1500, kPromptTokens);
  wave.Make(500);
  EXPECT_EQ(wave.remote.NextFrame(wave.shards).count, 0u);
  EXPECT_EQ(wave.remote.ready_end(), 1500u);
}

TEST(RemotePrefix, AsksOnlyShardsThatHaveTheLayer) {
  Wave wave(4);  // two halves of the heads, each in two ranges of layers
  wave.remote.BeginWave(0, 700, 710, kPromptTokens);
  wave.Make(10);
  ASSERT_EQ(wave.remote.NextFrame(wave.shards).count, 10u);
  int answers = 0;
  for (size_t i = 0; i < wave.shards.size(); ++i) {
    const bool has_layer = wave.shards[i].shard.HasLayer(0);
    EXPECT_EQ(wave.Answer(i, 700, 10, 0).ok(), has_layer);
    answers += has_layer;
    EXPECT_EQ(wave.remote.ready_end(), answers == 2 ? 710u : 700u);
  }
}

TEST(RemotePrefix, RefusesAnswersThatNobodyAskedFor) {
  Wave wave(1);
  EXPECT_FALSE(wave.Answer(0, 700, 10, 1).ok()) << "no wave";
  wave.remote.BeginWave(1, 700, 710, kPromptTokens);
  wave.Make(10);
  EXPECT_FALSE(wave.Answer(0, 700, 10, 1).ok()) << "not sent yet";
  ASSERT_EQ(wave.remote.NextFrame(wave.shards).count, 10u);
  EXPECT_FALSE(wave.Answer(0, 700, 9, 1).ok());
  EXPECT_FALSE(wave.Answer(0, 701, 10, 1).ok());
  EXPECT_FALSE(wave.Answer(0, 700, 10, 0).ok());
  EXPECT_FALSE(wave.Answer(0, 700, 10, 1, kEndKey - 128).ok());
  EXPECT_TRUE(wave.Answer(0, 700, 10, 1).ok());
  EXPECT_FALSE(wave.Answer(0, 700, 10, 1).ok()) << "twice";
}

}  // namespace
}  // namespace winnow
