// Bits of stored rows change in the memory of a running cache rank, which nothing in it can know of beforehand.
#include <gtest/gtest.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <future>
#include <random>
#include <sstream>

#include "common/base/kv_layout.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/golden.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

constexpr size_t kRowBytes = 256;  // of the demo model in bf16: 64 of K and of V
constexpr size_t kBlockBytes = kBlockTokens * (kRowBytes + kRowBytes / 2);  // rows, then their keys
constexpr size_t kMemoryBytes = size_t{48} << 20;
constexpr int kStreams = 4, kTokens = 100;

// The blocks of another process, found by what is asked of the kernel for their mapping: memory of that size in huge
// pages.
class StoredBlocks {
 public:
  explicit StoredBlocks(pid_t pid) : pid_(pid) {
    std::ifstream maps("/proc/" + std::to_string(pid) + "/smaps");
    uint64_t begin = 0, end = 0;
    for (std::string line; std::getline(maps, line);) {
      uint64_t from = 0, to = 0;
      if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) begin = from, end = to;
      const bool huge = line.rfind("VmFlags:", 0) == 0 && line.find(" hg") != std::string::npos;
      if (!huge || end - begin < kMemoryBytes / 2 || end - begin > kMemoryBytes) continue;
      address_ = begin;
      bytes_.resize((end - begin) / kBlockBytes * kBlockBytes);
    }
  }
  bool found() const { return address_ != 0; }

  // Flips a bit of each row that was ever written, or of so many of them; false when the process cannot be written to.
  bool Flip(std::mt19937& random, size_t most = SIZE_MAX) {
    iovec here{bytes_.data(), bytes_.size()}, there{reinterpret_cast<void*>(address_), bytes_.size()};
    if (process_vm_readv(pid_, &here, 1, &there, 1, 0) != static_cast<ssize_t>(bytes_.size())) return false;
    std::vector<size_t> rows;
    for (size_t block = 0; block < bytes_.size(); block += kBlockBytes) {
      for (size_t row = block; row < block + kBlockTokens * kRowBytes; row += kRowBytes) {
        const auto first = bytes_.begin() + static_cast<ptrdiff_t>(row);
        if (std::any_of(first, first + kRowBytes, [](std::byte b) { return b != std::byte{0}; })) rows.push_back(row);
      }
    }
    std::shuffle(rows.begin(), rows.end(), random);
    if (rows.size() > most) rows.resize(most);
    std::vector<iovec> from, to;
    for (const size_t row : rows) {
      const size_t at = row + random() % kRowBytes;
      bytes_[at] ^= std::byte{1} << random() % 8;
      from.push_back({&bytes_[at], 1});
      to.push_back({reinterpret_cast<void*>(address_ + at), 1});
    }
    // Many at a time: what is computed again meanwhile lies in the same memory, and would be hit again and again.
    for (size_t first = 0; first < rows.size(); first += IOV_MAX) {
      const size_t count = std::min<size_t>(IOV_MAX, rows.size() - first);
      if (process_vm_writev(pid_, &from[first], count, &to[first], count, 0) != static_cast<ssize_t>(count))
        return false;
    }
    return !rows.empty();
  }

 private:
  const pid_t pid_;
  uint64_t address_ = 0;
  std::vector<std::byte> bytes_;
};

class Damage : public testing::Test {
 protected:
  bool Start(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--budget=64", "--max-context=4096", "--cache-memory=48MiB"});
    cluster_ = StartOrFail(std::move(flags));
    if (cluster_ == nullptr) return false;
    for (int i = 0; i < kStreams; ++i) {
      reference_.push_back(Complete(cluster_->http(), Request(i)));
      EXPECT_TRUE(reference_.back().ok()) << reference_.back().error;
    }
    return true;
  }
  Json Request(int i) const { return GreedyRequest(DemoText(700, 500 * static_cast<size_t>(i)), tokens_); }
  // All streams at once; `damage` is called when each has begun to answer.
  std::vector<Completion> Stream(const std::function<void()>& damage) {
    std::atomic<int> decoding = 0;
    std::vector<std::future<Completion>> answers;
    for (int i = 0; i < kStreams; ++i) {
      answers.push_back(std::async(std::launch::async, [&, i] {
        bool counted = false;
        return StreamCompletion(cluster_->http(), Request(i), [&](size_t tokens) {
          if (tokens >= 5 && !std::exchange(counted, true)) ++decoding;
          return true;
        });
      }));
    }
    EXPECT_TRUE(WaitUntil(milliseconds(60'000), [&] { return decoding == kStreams; }));
    damage();
    std::vector<Completion> completions;
    for (auto& answer : answers) completions.push_back(answer.get());
    return completions;
  }
  double DamagedSequences() const { return cluster_->MetricsOf("cache-0").Value("winnow_damaged_sequences_total"); }

  int tokens_ = kTokens;  // of each answer
  std::mt19937 random_{17};
  std::unique_ptr<Cluster> cluster_;
  std::vector<Completion> reference_;
};

TEST_F(Damage, OfEveryStoredRowIsFoundAndTheAnswersAreComputedAnew) {
  ASSERT_TRUE(Start({"--prefix-cache=false"}));
  StoredBlocks blocks(cluster_->Pids("cache-rank")[0]);
  ASSERT_TRUE(blocks.found());
  const std::vector<Completion> answers = Stream([&] { ASSERT_TRUE(blocks.Flip(random_)); });
  for (int i = 0; i < kStreams; ++i) {
    EXPECT_TRUE(answers[i].ok()) << answers[i].error;
    EXPECT_EQ(answers[i].ids, reference_[i].ids);
  }
  EXPECT_GE(DamagedSequences(), 1);
}

TEST_F(Damage, OfRowsThatHaveAReplicaIsHealedFromIt) {
  tokens_ = 400;
  ASSERT_TRUE(Start({"--prefix-cache=false", "--cache-ranks=2", "--replicas=2"}));
  StoredBlocks blocks(cluster_->Pids("cache-rank")[0]);
  ASSERT_TRUE(blocks.found());
  const auto computed = [&] { return cluster_->MetricsOf("inference-0").Value("winnow_rank_prompt_tokens_total"); };
  const auto fed = [&](const char* rank) {
    return cluster_->MetricsOf(rank).Value("winnow_replicated_sequences", {{"replica", "fed"}});
  };
  double computed_before = 0;
  const std::vector<Completion> answers = Stream([&] {
    ASSERT_TRUE(WaitUntil(milliseconds(60'000), [&] { return fed("cache-0") + fed("cache-1") == kStreams; }));
    ASSERT_GE(fed("cache-0"), 1) << "requests are spread over cache ranks";
    computed_before = computed();
    ASSERT_TRUE(blocks.Flip(random_));
  });
  for (int i = 0; i < kStreams; ++i) {
    EXPECT_TRUE(answers[i].ok()) << answers[i].error;
    EXPECT_EQ(answers[i].ids, reference_[i].ids);
  }
  EXPECT_GE(DamagedSequences(), 1);
  const Metrics router = cluster_->MetricsOf("router-0");
  EXPECT_GE(router.Value("winnow_replica_promotions_total"), 1);
  EXPECT_EQ(router.Value("winnow_failovers_total", {{"mode", "recompute"}}), 0);
  EXPECT_EQ(computed(), computed_before) << "a prompt was computed again";
}

// Rows of prompts that are shared are among them, and the scrub runs; a request that is hit again and again may fail,
// but no token that leaves is wrong.
TEST_F(Damage, OfRowsHereAndThereChangesNoToken) {
  ASSERT_TRUE(Start({"--scrub-bytes-per-s=64MiB"}));
  StoredBlocks blocks(cluster_->Pids("cache-rank")[0]);
  ASSERT_TRUE(blocks.found());
  int finished = 0;
  for (int round = 0; round < 10; ++round) {
    const std::vector<Completion> answers = Stream([&] { ASSERT_TRUE(blocks.Flip(random_, 100)); });
    for (int i = 0; i < kStreams; ++i) {
      finished += answers[i].ok();
      ASSERT_LE(answers[i].ids.size(), reference_[i].ids.size());
      EXPECT_TRUE(std::equal(answers[i].ids.begin(), answers[i].ids.end(), reference_[i].ids.begin()));
      if (answers[i].ok()) continue;
      EXPECT_NE(answers[i].error.find("stored rows were damaged"), std::string::npos) << answers[i].error;
    }
  }
  EXPECT_GT(DamagedSequences(), 0);
  EXPECT_GT(finished, kStreams);
}

}  // namespace
}  // namespace winnow::e2e
