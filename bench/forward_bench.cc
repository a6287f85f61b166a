// The forward pass alone, in one process and without cache rank: prefill and dense decode tokens/s by context length and batch size.
// What a served request loses against it is the cost of everything around: scheduling, data plane, HTTP.
//
//   forward_bench MODEL_DIR [--threads N] [--contexts 64,1024,4096,16384] [--batch 1,8] [--seconds 2] [--chunk 512]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "inference_rank/model/transformer.h"
#include "inference_rank/prefill_arena.h"
#include "inference_rank/working_set.h"

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class ArenaKv final : public PrefillKv {
 public:
  ArenaKv(const KvLayout& layout, PrefillArena& arena) : layout_(layout), arena_(arena) {}
  void Begin(uint32_t first, uint32_t count) { first_ = first, count_ = count; }
  Rows Publish(int layer, const std::byte* kv_rows, const float*) override {
    const size_t row_bytes = layout_.row_bytes();
    for (int head = 0; head < layout_.num_kv_heads; ++head) {
      for (uint32_t i = 0; i < count_; ++i) {
        std::memcpy(arena_.row(layer, head, first_ + i), kv_rows + (i * layout_.num_kv_heads + head) * row_bytes, row_bytes);
      }
    }
    return {.kv = arena_.row(layer, 0, 0), .head_stride = arena_.prompt_tokens()};
  }

 private:
  const KvLayout layout_;
  PrefillArena& arena_;
  uint32_t first_ = 0, count_ = 0;
};

class ResidentKv final : public DecodeKv {
 public:
  ResidentKv(const KvLayout& layout, std::vector<WorkingSet>& sets) : layout_(layout), sets_(sets) {}
  void Begin(uint32_t position) {
    position_ = position;
    for (WorkingSet& set : sets_) set.AdvanceDense(position);
  }
  int Lookahead() const override { return 0; }
  void Publish(const DecodeLayerOutput& output) override {
    for (size_t row = 0; row < sets_.size(); ++row) {
      for (int head = 0; head < layout_.num_kv_heads; ++head) {
        sets_[row].WriteRow(output.layer, head, position_,
                            output.kv_rows + (row * layout_.num_kv_heads + head) * layout_.row_bytes());
      }
    }
  }
  void AwaitSlots(int layer, const uint32_t** slots, uint32_t* counts) override {
    for (size_t row = 0; row < sets_.size(); ++row) {
      for (int head = 0; head < layout_.num_kv_heads; ++head) {
        const auto list = sets_[row].Slots(layer, head);
        slots[row * layout_.num_kv_heads + head] = list.data();
        counts[row * layout_.num_kv_heads + head] = static_cast<uint32_t>(list.size());
      }
    }
  }

 private:
  const KvLayout layout_;
  std::vector<WorkingSet>& sets_;
  uint32_t position_ = 0;
};

std::vector<uint32_t> Numbers(const std::string& list) {
  std::vector<uint32_t> numbers;
  std::stringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) numbers.push_back(static_cast<uint32_t>(std::stoul(item)));
  return numbers;
}

int Run(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s MODEL_DIR [--threads N] [--contexts LIST] [--batch LIST] [--seconds S] [--chunk N]\n", argv[0]);
    return 2;
  }
  int threads = 2;
  double seconds = 2;
  uint32_t chunk = 512;
  std::vector<uint32_t> contexts = {64, 1024, 4096, 16384}, batches = {1, 8};
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--threads") threads = std::stoi(value);
    if (flag == "--contexts") contexts = Numbers(value);
    if (flag == "--batch") batches = Numbers(value);
    if (flag == "--seconds") seconds = std::stod(value);
    if (flag == "--chunk") chunk = std::stoul(value);
  }
  const auto config = LoadModelConfig(argv[1]);
  if (!config.ok()) return std::fprintf(stderr, "%s\n", config.status().ToString().c_str()), 1;
  auto checkpoint = Checkpoint::Open(argv[1]);
  if (!checkpoint.ok()) return std::fprintf(stderr, "%s\n", checkpoint.status().ToString().c_str()), 1;
  const KernelTable& kernels = **CpuKernels();
  const std::unique_ptr<Executor> executor = kernels.new_executor(threads);
  auto weights = ModelWeights::Load(*std::move(checkpoint), *config, kernels);
  if (!weights.ok()) return std::fprintf(stderr, "%s\n", weights.status().ToString().c_str()), 1;
  const KvLayout layout = config->kv_layout(Dtype::kBf16);
  const SelectionSpec dense{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  Transformer transformer(*config, **weights, kernels, *executor, Dtype::kBf16, static_cast<int>(chunk), 4096);

  std::printf("%s, %d threads, weights %.1f MB\n%8s %6s %14s %14s %16s %10s\n", std::string(kernels.name).c_str(), threads,
              (*weights)->bytes() / 1e6, "context", "batch", "prefill tok/s", "decode tok/s", "us per step", "GB/s");
  for (uint32_t context : contexts) {
    std::vector<uint32_t> ids(context);
    for (uint32_t i = 0; i < context; ++i) ids[i] = (i * 7919 + 13) % config->vocab_size;
    auto arena = PrefillArena::Create(layout, context);
    ArenaKv arena_kv(layout, *arena);
    double prefill_seconds = 1e30;
    for (int repeat = 0; repeat < (context > 8192 ? 1 : 3); ++repeat) {
      const auto start = Clock::now();
      for (uint32_t first = 0; first < context; first += chunk) {
        const uint32_t count = std::min(chunk, context - first);
        arena_kv.Begin(first, count);
        transformer.Prefill({ids.data() + first, count}, first, first + count == context, arena_kv);
      }
      prefill_seconds = std::min(prefill_seconds, SecondsSince(start));
    }
    for (uint32_t batch : batches) {
      const uint32_t most = context + 4096;
      const uint32_t pages = WorkingSet::PagesNeeded(layout, dense, most);
      auto pool = SlotPool::Create(layout.row_bytes(), pages * batch);
      transformer.set_slot_pool(pool->rows());
      std::vector<WorkingSet> sets;
      for (uint32_t row = 0; row < batch; ++row) {
        sets.push_back(*WorkingSet::Create(*pool, layout, dense, most));
        for (int layer = 0; layer < layout.num_layers; ++layer) {
          for (int head = 0; head < layout.num_kv_heads; ++head) {
            sets[row].LoadRows(layer, head, 0, context, arena->row(layer, head, 0), context);
          }
        }
        sets[row].FinishLoad(context);
      }
      ResidentKv kv(layout, sets);
      std::vector<double> steps;
      const auto start = Clock::now();
      for (uint32_t p = context; p < most && (SecondsSince(start) < seconds || steps.size() < 5); ++p) {
        const auto step = Clock::now();
        kv.Begin(p);
        transformer.Decode(std::vector<uint32_t>(batch, ids[p % context]), std::vector<uint32_t>(batch, p), kv);
        steps.push_back(SecondsSince(step));
      }
      std::nth_element(steps.begin(), steps.begin() + steps.size() / 2, steps.end());
      const double median = steps[steps.size() / 2];
      const double bytes = (*weights)->memory().packed_bytes() + static_cast<double>(batch) * context * layout.token_bytes();
      std::printf("%8u %6u %14.0f %14.0f %16.1f %10.1f\n", context, batch, context / prefill_seconds, batch / median, median * 1e6,
                  bytes / median / 1e9);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) { return winnow::Run(argc, argv); }
