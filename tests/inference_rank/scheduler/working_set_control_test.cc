#include "inference_rank/scheduler/working_set_control.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>

#include "inference_rank/scheduler/scheduler.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Time = WorkingSetControl::Time;
using State = Sequence::State;

constexpr Time kStart{std::chrono::hours(1)};
const KvLayout kLayout{2, 4, 2, 16, Dtype::kBf16};
constexpr Scheduler::Free kPlenty{.slot_pages = 100000, .prefill_bytes = size_t{1} << 40};

std::shared_ptr<CacheLink> LinkTo(const char* address, uint64_t fast_bytes) {
  auto link =
      std::make_shared<CacheLink>(address, grpc::CreateChannel(address, grpc::InsecureChannelCredentials()), [] {});
  link->set_fast_rows_bytes(fast_bytes);
  return link;
}

ShardPlace PlaceAt(const char* address) {
  ShardPlace place{.cache_rank = {}, .shard = WholeModel(kLayout)};
  place.cache_rank.set_address(address);
  return place;
}

// Sequences that decode; request ids and arrivals count from 1.
class WorkingSetControlTest : public testing::Test {
 protected:
  Sequence* Add(std::shared_ptr<CacheLink> link, std::optional<uint64_t> bytes, int priority = 0) {
    auto sequence = std::make_unique<Sequence>();
    sequence->request_id = sequence->arrival = sequences_.size() + 1;
    sequence->state = State::kDecoding;
    sequence->shards = {{.link = std::move(link), .shard = WholeModel(kLayout), .working_set_bytes = bytes}};
    sequence->priority = priority;
    sequence->turn_since = kStart;
    sequences_.push_back(std::move(sequence));
    return sequences_.back().get();
  }
  // Request ids of those that take a step, ascending.
  std::vector<uint64_t> Turns(WorkingSetControl& control, Time now) {
    std::vector<Sequence*> decoding;
    for (const auto& sequence : sequences_) decoding.push_back(sequence.get());
    control.TakeTurns(decoding, now);
    std::vector<uint64_t> ids;
    for (const Sequence* sequence : decoding) ids.push_back(sequence->request_id);
    std::sort(ids.begin(), ids.end());
    return ids;
  }

  std::vector<std::unique_ptr<Sequence>> sequences_;
};

using Ids = std::vector<uint64_t>;

TEST_F(WorkingSetControlTest, TakesWhileTheWorkingSetsFit) {
  WorkingSetControl control(seconds(0));
  const auto link = LinkTo("127.0.0.1:1", 100);
  for (const uint64_t bytes : {40, 50, 30, 10}) Add(link, bytes);
  EXPECT_EQ(Turns(control, kStart), Ids({1, 2, 4})) << "a smaller one fills what is left";
  EXPECT_TRUE(control.IsFull("127.0.0.1:1"));
  EXPECT_FALSE(control.IsFull("127.0.0.1:2"));
  // Fast memory that is not limited, or not known yet.
  link->set_fast_rows_bytes(wire::kOneTier);
  EXPECT_EQ(Turns(control, kStart), Ids({1, 2, 3, 4}));
  EXPECT_FALSE(control.IsFull("127.0.0.1:1"));
}

TEST_F(WorkingSetControlTest, EachCacheRankHasItsOwnFastMemory) {
  WorkingSetControl control(seconds(0));
  const auto small = LinkTo("127.0.0.1:1", 50), large = LinkTo("127.0.0.1:2", 200);
  for (int i = 0; i < 3; ++i) {
    Add(small, 40);
    Add(large, 40);
  }
  EXPECT_EQ(Turns(control, kStart), Ids({1, 2, 4, 6}));
}

TEST_F(WorkingSetControlTest, OneThatIsLargerThanFastMemoryGoesOnAlone) {
  WorkingSetControl control(seconds(0));
  const auto link = LinkTo("127.0.0.1:1", 100);
  Add(link, 500);
  Add(link, 10);
  EXPECT_EQ(Turns(control, kStart), Ids({1}));
}

TEST_F(WorkingSetControlTest, WhoHasNotDecodedCountsAsTheOthersDo) {
  WorkingSetControl control(seconds(0));
  const auto link = LinkTo("127.0.0.1:1", 100);
  Add(link, 40);
  Add(link, 40);
  Add(link, std::nullopt);
  EXPECT_EQ(Turns(control, kStart), Ids({1, 2}));
  // Nobody is known: all take their first step, and say what it took.
  for (auto& sequence : sequences_) {
    sequence->shards[0].working_set_bytes.reset();
    sequence->parked_since.reset();
  }
  EXPECT_EQ(Turns(control, kStart), Ids({1, 2, 3}));
}

TEST_F(WorkingSetControlTest, AHigherPriorityTakesTheTurnOfALower) {
  WorkingSetControl control(seconds(10));
  const auto link = LinkTo("127.0.0.1:1", 100);
  Add(link, 50);
  Add(link, 50);
  EXPECT_EQ(Turns(control, kStart), Ids({1, 2}));
  Add(link, 50, 1);
  EXPECT_EQ(Turns(control, kStart + seconds(1)), Ids({1, 3}));
}

TEST_F(WorkingSetControlTest, ATurnIsKeptWhileThereIsRoom) {
  WorkingSetControl control(seconds(0));
  const auto link = LinkTo("127.0.0.1:1", 100);
  Sequence* first = Add(link, 40);
  Add(link, 40);
  Sequence* third = Add(link, 25);
  ASSERT_EQ(Turns(control, kStart), Ids({1, 2}));
  // Room for the third, but so little that the next step might take it back.
  third->shards[0].working_set_bytes = 20;
  EXPECT_EQ(Turns(control, kStart), Ids({1, 2}));
  third->shards[0].working_set_bytes = 7;
  EXPECT_EQ(Turns(control, kStart), Ids({1, 2, 3}));
  third->shards[0].working_set_bytes = 20;
  EXPECT_EQ(Turns(control, kStart), Ids({1, 2, 3}));
  // The youngest goes when they grow.
  first->shards[0].working_set_bytes = 41;
  EXPECT_EQ(Turns(control, kStart), Ids({1, 2}));
}

// Random working sets, all of which never fit together.
TEST_F(WorkingSetControlTest, NobodyStarves) {
  constexpr seconds kBound(5);
  WorkingSetControl control(kBound);
  const auto link = LinkTo("127.0.0.1:1", 1000);
  std::mt19937 random(5);
  for (int i = 0; i < 12; ++i) Add(link, 100 + random() % 700, i % 3 == 0 ? 1 : 0);
  std::map<uint64_t, milliseconds> longest;
  std::map<uint64_t, int> steps;
  for (milliseconds t(0); t < seconds(600); t += milliseconds(100)) {
    const Time now = kStart + t;
    uint64_t bytes = 0;
    const Ids turns = Turns(control, now);
    for (const uint64_t id : turns) {
      bytes += *sequences_[id - 1]->shards[0].working_set_bytes;
      ++steps[id];
    }
    ASSERT_LE(bytes, 1000u);
    for (const auto& sequence : sequences_) {
      if (!sequence->parked_since.has_value()) continue;
      milliseconds& wait = longest[sequence->request_id];
      wait = std::max(wait, std::chrono::duration_cast<milliseconds>(now - *sequence->parked_since));
      // They grow and shrink a little from step to step.
      sequence->shards[0].working_set_bytes =
          std::clamp<uint64_t>(*sequence->shards[0].working_set_bytes + random() % 5 - 2, 100, 800);
    }
  }
  EXPECT_EQ(longest.size(), 12u) << "somebody was never parked: the test shows little";
  for (const auto& [id, wait] : longest) {
    EXPECT_LE(wait, kBound * 14) << id;
    EXPECT_GT(steps[id], 100) << id;
  }
}

// Block LRU of a cache rank's fast memory.
class LruBlocks {
 public:
  explicit LruBlocks(size_t capacity) : capacity_(capacity) {}
  // True when it had to be loaded.
  bool Read(uint64_t block) {
    const auto found = places_.find(block);
    if (found != places_.end()) {
      order_.splice(order_.begin(), order_, found->second);
      return false;
    }
    if (places_.size() == capacity_) {
      places_.erase(order_.back());
      order_.pop_back();
    }
    order_.push_front(block);
    places_[block] = order_.begin();
    return true;
  }

 private:
  const size_t capacity_;
  std::list<uint64_t> order_;
  std::map<uint64_t, std::list<uint64_t>::iterator> places_;
};

// Each step a sequence reads kRead blocks of its context, of which one in ten has changed since the step before.
struct Thrashing {
  static constexpr int kRead = 64, kChanged = 1, kFastBlocks = 1000, kSequences = 24;
  uint64_t loaded = 0, steps = 0, rows = 0;

  explicit Thrashing(bool control) {
    Scheduler scheduler({.max_running = 64, .age_bound = seconds(30), .working_set_control = control}, kLayout);
    const auto link = LinkTo("127.0.0.1:1", kFastBlocks);
    LruBlocks fast(kFastBlocks);
    std::map<const Sequence*, uint64_t> newest;  // it reads blocks (newest - kRead, newest]
    for (int i = 0; i < kSequences; ++i) {
      auto sequence = std::make_unique<Sequence>();
      sequence->prompt.assign(10, 1);
      sequence->max_positions = 20;
      sequence->spec = {.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
      sequence->places = {PlaceAt("127.0.0.1:1")};
      scheduler.Enqueue(std::move(sequence), kStart);
      Sequence* admitted = scheduler.Admit(kPlenty, kStart);
      admitted->state = State::kDecoding;
      admitted->shards = {{.link = link, .shard = WholeModel(kLayout)}};
      newest[admitted] = uint64_t{1000000} * (i + 1);
    }
    for (milliseconds t(0); t < seconds(300); t += milliseconds(50)) {
      const auto plan = scheduler.Plan(0, kStart + t);
      ++steps;
      for (Sequence* sequence : plan.rows) {
        ++rows;
        newest[sequence] += kChanged;
        for (int i = kRead - 1; i >= 0; --i) loaded += fast.Read(newest[sequence] - i);
        sequence->shards[0].working_set_bytes = kRead + 11 * kChanged;  // the union of twelve steps
      }
    }
  }
  double loaded_per_row() const { return static_cast<double>(loaded) / static_cast<double>(rows); }
};

TEST(SchedulerWithFastMemory, LoadsTenTimesLessThanWithoutWorkingSetControl) {
  const Thrashing without(false), with(true);
  EXPECT_EQ(without.rows, without.steps * Thrashing::kSequences);
  EXPECT_DOUBLE_EQ(without.loaded_per_row(), Thrashing::kRead) << "24 x 64 blocks in 1000 do not thrash";
  EXPECT_LT(10 * with.loaded_per_row(), without.loaded_per_row());
  // And not by doing nothing: as many take steps as fit.
  EXPECT_GE(with.rows, with.steps * 12);
}

TEST(SchedulerWithFastMemory, AFullCacheRankTakesOneMoreEachAgeBound) {
  Scheduler scheduler({.max_running = 64, .age_bound = seconds(10)}, kLayout);
  const auto link = LinkTo("127.0.0.1:1", 100);
  const auto enqueue = [&](uint64_t id, const char* address) {
    auto sequence = std::make_unique<Sequence>();
    sequence->request_id = id;
    sequence->prompt.assign(10, 1);
    sequence->max_positions = 20;
    sequence->places = {PlaceAt(address)};
    scheduler.Enqueue(std::move(sequence), kStart);
  };
  for (uint64_t id = 1; id <= 2; ++id) {
    enqueue(id, "127.0.0.1:1");
    Sequence* sequence = scheduler.Admit(kPlenty, kStart);
    sequence->state = State::kDecoding;
    sequence->shards = {{.link = link, .shard = WholeModel(kLayout), .working_set_bytes = 60}};
  }
  EXPECT_EQ(scheduler.Plan(0, kStart).rows.size(), 1u);
  EXPECT_EQ(scheduler.num_parked(), 1u);
  enqueue(3, "127.0.0.1:1");
  EXPECT_EQ(scheduler.Admit(kPlenty, kStart + seconds(9)), nullptr);
  enqueue(4, "127.0.0.1:1");
  EXPECT_EQ(scheduler.Admit(kPlenty, kStart + seconds(10))->request_id, 3u);
  EXPECT_EQ(scheduler.Admit(kPlenty, kStart + seconds(19)), nullptr) << "one each bound";
  EXPECT_EQ(scheduler.Admit(kPlenty, kStart + seconds(20))->request_id, 4u);
  // Another cache rank has room.
  enqueue(5, "127.0.0.1:2");
  EXPECT_NE(scheduler.Admit(kPlenty, kStart), nullptr);
}

}  // namespace
}  // namespace winnow
