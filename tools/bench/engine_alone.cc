#include "tools/bench/engine_alone.h"

#include <algorithm>
#include <chrono>

#include "common/base/check.h"

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

uint32_t MadeUpToken(const ModelConfig& config, uint32_t position) {
  return (position * 7919 + 13) % config.vocab_size;
}

class ArenaKv final : public PrefillKv {
 public:
  explicit ArenaKv(PrefillArena& arena) : arena_(arena) {}
  void Begin(uint32_t first, uint32_t count) { first_ = first, count_ = count; }
  Rows Publish(int layer, const std::byte* kv_rows, const float*) override {
    arena_.Store(layer, first_, count_, kv_rows);
    return {.kv = arena_.row(layer, 0, 0), .head_stride = arena_.prompt_tokens()};
  }

 private:
  PrefillArena& arena_;
  uint32_t first_ = 0, count_ = 0;
};

class ResidentKv final : public DecodeKv {
 public:
  ResidentKv(const KvLayout& layout, std::vector<WorkingSet>& sets) : layout_(layout), sets_(sets) {}
  void Begin(uint32_t position) {
    position_ = position;
    for (WorkingSet& set : sets_) set.Advance(position);
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
  void AwaitSlots(int layer, SlotLists& lists) override {
    for (const WorkingSet& set : sets_) {
      for (int head = 0; head < layout_.num_kv_heads; ++head) lists.Add(set.Slots(layer, head), layout_.group_size());
    }
  }

 private:
  const KvLayout layout_;
  std::vector<WorkingSet>& sets_;
  uint32_t position_ = 0;
};

}  // namespace

EngineAlone::EngineAlone(const Options& options, ModelConfig config, const KernelTable* kernels)
    : options_(options),
      config_(std::move(config)),
      layout_(config_.kv_layout(Dtype::kBf16)),
      kernels_(kernels),
      executor_(kernels->new_executor(options.threads)) {}

absl::StatusOr<std::unique_ptr<EngineAlone>> EngineAlone::Load(const std::string& model_dir, const Options& options) {
  WINNOW_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(model_dir));
  WINNOW_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(model_dir));
  WINNOW_ASSIGN_OR_RETURN(const KernelTable* kernels, CpuKernels());
  std::unique_ptr<EngineAlone> engine(new EngineAlone(options, std::move(config), kernels));
  WINNOW_ASSIGN_OR_RETURN(engine->weights_, ModelWeights::Load(std::move(checkpoint), engine->config_, *kernels));
  engine->transformer_ =
      std::make_unique<Transformer>(engine->config_, *engine->weights_, *kernels, *engine->executor_, Dtype::kBf16,
                                    static_cast<int>(options.chunk_tokens), options.max_context_tokens);
  return engine;
}

double EngineAlone::PrefillSeconds(uint32_t context, int repeats) {
  std::vector<uint32_t> ids(context);
  for (uint32_t i = 0; i < context; ++i) ids[i] = MadeUpToken(config_, i);
  absl::StatusOr<PrefillArena> arena = PrefillArena::Create(layout_, context);
  WINNOW_CHECK(arena.ok());
  arena_ = std::make_unique<PrefillArena>(*std::move(arena));
  context_tokens_ = context;
  ArenaKv kv(*arena_);
  double best = 1e30;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = Clock::now();
    for (uint32_t first = 0; first < context;) {
      const bool last = first + 1 == context;
      const uint32_t count = last ? 1 : std::min(options_.chunk_tokens, context - 1 - first);
      kv.Begin(first, count);
      transformer_->Prefill({ids.data() + first, count}, first, last, kv);
      first += count;
    }
    best = std::min(best, SecondsSince(start));
  }
  return best;
}

double EngineAlone::DecodeStepSeconds(uint32_t batch, double seconds) {
  const SelectionSpec dense{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  const uint32_t first = context_tokens_, end = first + options_.decode_tokens;
  std::vector<double> steps;
  const auto start = Clock::now();
  while (steps.empty() || SecondsSince(start) < seconds) {
    absl::StatusOr<SlotPool> pool =
        SlotPool::Create(layout_.row_bytes(), WorkingSet::PagesNeeded(layout_, dense, end) * batch);
    WINNOW_CHECK(pool.ok());
    transformer_->set_slot_pool(pool->rows());
    std::vector<WorkingSet> sets;
    for (uint32_t row = 0; row < batch; ++row) {
      sets.push_back(*WorkingSet::Create(*pool, layout_, dense, end, first));
      for (int layer = 0; layer < layout_.num_layers; ++layer) {
        for (int head = 0; head < layout_.num_kv_heads; ++head) {
          sets[row].LoadRows(layer, head, 0, first, arena_->row(layer, head, 0), first);
        }
      }
      sets[row].FinishLoad(first);
    }
    ResidentKv kv(layout_, sets);
    for (uint32_t position = first; position < end; ++position) {
      const auto step = Clock::now();
      kv.Begin(position);
      transformer_->DecodeByLayer(std::vector<uint32_t>(batch, MadeUpToken(config_, position)),
                                  std::vector<uint32_t>(batch, position), kv);
      steps.push_back(SecondsSince(step));
    }
  }
  std::nth_element(steps.begin(), steps.begin() + steps.size() / 2, steps.end());
  return steps[steps.size() / 2];
}

}  // namespace winnow
