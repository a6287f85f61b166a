#include "tests/inference_rank/two_ranks.h"

#include <utility>

#include "common/base/check.h"
#include "common/selection/shard_spec.h"
#include "inference_rank/step/prefetch_commit.h"

namespace winnow::test {
namespace {

ModelConfig WriteAndLoad(const TinyModel& model, const std::string& directory) {
  WriteTinyCheckpoint(model, directory);
  return LoadModelConfig(directory).value();
}

uint32_t TokenAt(uint32_t seed, uint32_t position, uint32_t vocab) {
  return (position * 7919 + seed * 104729 + position * position % 31) % vocab;
}

}  // namespace

// Lets the cache rank work when the inference rank waits.
class TwoRanks::PumpedTransport final : public Transport {
 public:
  PumpedTransport(std::unique_ptr<Transport> inner, std::function<void()> pump)
      : inner_(std::move(inner)), pump_(std::move(pump)) {}
  TransportCapabilities capabilities() const override { return inner_->capabilities(); }
  void SetHandler(FrameHandler handler) override { inner_->SetHandler(std::move(handler)); }
  absl::StatusOr<std::unique_ptr<Channel>> NewChannel() override { return inner_->NewChannel(); }
  int Progress() override { return inner_->Progress(); }
  int Wait(std::chrono::microseconds, std::chrono::microseconds) override {
    pump_();
    return inner_->Progress();
  }
  void Wake() override { inner_->Wake(); }
  absl::Status CheckPayload(const ReceivedFrame& frame) override { return inner_->CheckPayload(frame); }

 private:
  const std::unique_ptr<Transport> inner_;
  const std::function<void()> pump_;
};

TwoRanks::TwoRanks(const TinyModel& model, std::chrono::milliseconds wait_timeout, int num_shards)
    : config_(WriteAndLoad(model, directory_.path())),
      layout_(config_.kv_layout(Dtype::kF32)),
      kernels_(*CpuKernels("portable").value()),
      executor_(kernels_.new_executor(1)),
      cache_executor_(kernels_.new_executor(1)),
      weights_(ModelWeights::Load(Checkpoint::Open(directory_.path()).value(), config_, kernels_,
                                  {.compute_dtype = Dtype::kF32})
                   .value()),
      transformer_(config_, *weights_, kernels_, *executor_, Dtype::kF32, 512, 1024),
      metrics_(config_.num_layers),
      slots_(SlotPool::Create(layout_.row_bytes(), 1024).value()),
      shards_(CutIntoShards(layout_, num_shards).value()),
      transport_(std::make_unique<PumpedTransport>(NewInprocTransport({.incarnation = 1}),
                                                   [this] {
                                                     for (const auto& side : cache_sides_) {
                                                       side->transport->Progress();
                                                       side->data_plane->RunOnce();
                                                     }
                                                   })),
      decode_step_(*transport_, layout_, metrics_, {.timeout = wait_timeout}),
      prefill_step_(*transport_, layout_, metrics_, {}) {
  transformer_.set_slot_pool(slots_.rows());
  transport_->SetHandler([this](Channel& channel, ReceivedFrame frame) { OnFrame(channel, std::move(frame)); });
  for (int i = 0; i < num_shards; ++i) cache_sides_.push_back(NewCacheSide(2 + i));
}

std::unique_ptr<TwoRanks::CacheSide> TwoRanks::NewCacheSide(uint64_t incarnation) {
  auto side = std::make_unique<CacheSide>();
  side->transport = NewInprocTransport({.incarnation = incarnation});
  side->data_plane = DataPlane::Create({.memory_bytes = size_t{64} << 20}, MakeShape(), &kernels_,
                                       cache_executor_.get(), &side->metrics)
                         .value();
  side->transport->SetHandler([data_plane = side->data_plane.get()](Channel& channel, ReceivedFrame frame) {
    data_plane->HandleFrame(channel, frame);
  });
  side->link = std::make_shared<CacheLink>(
      "nowhere", grpc::CreateChannel("localhost:1", grpc::InsecureChannelCredentials()), [] {});
  std::unique_ptr<Channel> ours = transport_->NewChannel().value(), theirs = side->transport->NewChannel().value();
  WINNOW_CHECK(ours->Connect(theirs->LocalAddress()).ok());
  WINNOW_CHECK(theirs->Connect(ours->LocalAddress()).ok());
  side->link->set_channel(std::move(ours));
  side->link_id = side->data_plane->OpenLink("inference-0", std::move(theirs), nullptr);
  return side;
}

TwoRanks::~TwoRanks() {
  sequences_.clear();
  for (const auto& side : cache_sides_) {
    side->link->channel()->Close();
    side->link.reset();
    side->data_plane.reset();
  }
}

ServedShape TwoRanks::MakeShape() const {
  v1::KvShape shape;
  shape.set_num_layers(layout_.num_layers);
  shape.set_num_query_heads(layout_.num_query_heads);
  shape.set_num_kv_heads(layout_.num_kv_heads);
  shape.set_head_dim(layout_.head_dim);
  shape.set_value_is_key(layout_.row.value_is_key);
  shape.set_index_dim(layout_.row.index_dim);
  shape.set_num_index_heads(layout_.num_index_heads);
  shape.set_kv_dtype(v1::KV_DTYPE_F32);
  for (const float frequency : transformer_.rope().inv_freq) shape.add_rope_inv_freq(frequency);
  shape.set_rope_attention_factor(transformer_.rope().attention_factor);
  shape.set_attention_scale(transformer_.attention_scale());
  return ParseKvShape(shape).value();
}

namespace {

// The last byte of a Delta frame is one of a row, if it has some.
ReceivedFrame Unchecked(const ReceivedFrame& frame, bool damaged) {
  auto* const bytes = new std::vector<std::byte>(frame.payload().begin(), frame.payload().end());
  if (damaged && !bytes->empty()) bytes->back() ^= std::byte{1};
  ReceivedFrame unchecked(
      frame.header(), *bytes, bytes,
      [](void* owner, const std::byte*, size_t) { delete static_cast<std::vector<std::byte>*>(owner); },
      /*is_pinned=*/true);
  unchecked.LeavePayloadUnchecked();
  return unchecked;
}

}  // namespace

void TwoRanks::OnFrame(const Channel& channel, ReceivedFrame frame) {
  const wire::FrameHeader header = frame.header();
  size_t side = 0;
  while (cache_sides_[side]->link->channel() != &channel) ++side;
  const CacheLink& link = *cache_sides_[side]->link;
  absl::Status status;
  if (header.type == wire::FrameType::kDelta && header.phase == wire::Phase::kPrefetch) {
    Sequence& sequence = *sequences_.at(header.sequence_id);
    status = CommitPrefetch(layout_, sequence.FindShard(link)->shard, frame, *sequence.working_set).status();
  } else if (header.type == wire::FrameType::kDelta) {
    status = decode_step_.OnDelta(link, leaves_unchecked ? Unchecked(frame, damages_rows) : std::move(frame));
  }
  if (header.type == wire::FrameType::kPartial && !drop_partials) status = decode_step_.OnPartial(link, frame);
  if (header.type == wire::FrameType::kTransferFailed) {
    sequences_.at(header.sequence_id)->Fail(absl::UnavailableError("refused"), true);
  }
  if (!status.ok()) malformed.push_back(status);
}

Sequence* TwoRanks::Open(uint64_t id, uint32_t seed, const SelectionSpec& spec, uint32_t prompt_tokens,
                         uint32_t decodes) {
  auto owned = std::make_unique<Sequence>();
  Sequence& sequence = *owned;
  sequence.sequence_id = id;
  sequence.spec = spec;
  sequence.max_positions = prompt_tokens + decodes;
  for (uint32_t p = 0; p < prompt_tokens + decodes; ++p) {
    (p < prompt_tokens ? sequence.prompt : sequence.generated).push_back(TokenAt(seed, p, config_.vocab_size));
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    const CacheSide& side = *cache_sides_[SideOf(id, i)];
    const SelectionSpec of_shard = SpecOfShard(spec, layout_, shards_[i]);
    const auto opened = side.data_plane->OpenSequence(side.link_id, {.sequence_id = id,
                                                                     .spec = of_shard,
                                                                     .max_positions = sequence.max_positions,
                                                                     .prompt_tokens = prompt_tokens,
                                                                     .sampling = {},
                                                                     .shard = shards_[i]});
    sequence.shards.push_back({.link = side.link, .shard = shards_[i], .attach_epoch = opened.value().attach_epoch});
  }
  sequence.working_set.emplace(
      WorkingSet::Create(slots_, layout_, spec, sequence.max_positions, prompt_tokens).value());
  return (sequences_[id] = std::move(owned)).get();
}

Sequence* TwoRanks::Prefill(uint64_t id, uint32_t seed, const SelectionSpec& spec, uint32_t prompt_tokens,
                            uint32_t decodes) {
  Sequence& sequence = *Open(id, seed, spec, prompt_tokens, decodes);
  sequence.arena.emplace(PrefillArena::Create(layout_, prompt_tokens).value());
  for (const uint32_t count : {prompt_tokens - 1, 1u}) {
    if (count == 0) continue;
    const uint32_t first = sequence.next_position;
    prefill_step_.Begin(sequence, first, count);
    const std::span<float> logits =
        transformer_.Prefill({sequence.prompt.data() + first, count}, first, first + 1 == prompt_tokens, prefill_step_);
    prompt_logits_.assign(logits.begin(), logits.end());
    sequence.next_position += count;
  }
  LoadPrompt(layout_, *sequence.arena, sequence);
  sequence.arena.reset();
  return &sequence;
}

Sequence* TwoRanks::PrefillByLayer(uint64_t id, uint32_t seed, const SelectionSpec& spec, uint32_t prompt_tokens,
                                   uint32_t decodes, uint32_t chunk) {
  Sequence& sequence = *Open(id, seed, spec, prompt_tokens, decodes);
  sequence.arena.emplace(
      PrefillArena::Create(layout_, prompt_tokens, static_cast<uint32_t>(config_.hidden_size)).value());
  PrefillArena& arena = *sequence.arena;
  transformer_.EmbedPrompt(sequence.prompt, arena.Residuals(0));
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    for (uint32_t first = 0; first < prompt_tokens;) {
      const bool last = first + 1 == prompt_tokens;
      const uint32_t count = last ? 1 : std::min(chunk, prompt_tokens - 1 - first);
      prefill_step_.Begin(sequence, first, count);
      transformer_.PrefillLayer(layer, first, static_cast<int>(count), last, arena.Residuals(first), prefill_step_);
      first += count;
    }
    LoadPromptLayer(layout_, arena, layer, sequence);
  }
  const std::span<float> logits = transformer_.PromptLogits(arena.Residuals(prompt_tokens - 1));
  prompt_logits_.assign(logits.begin(), logits.end());
  sequence.working_set->FinishLoad(prompt_tokens);
  sequence.next_position = prompt_tokens;
  sequence.arena.reset();
  return &sequence;
}

std::vector<std::vector<float>> TwoRanks::Decode(const std::vector<Sequence*>& sequences, DecodeKv* kv) {
  decode_step_.Begin(next_plan_++, sequences);
  const std::span<float> logits = transformer_.DecodeByLayer(decode_step_.token_ids(), decode_step_.positions(),
                                                             kv == nullptr ? decode_step_ : *kv);
  decode_step_.Finish();
  for (int i = 0; i < 50; ++i) transport_->Wait({}, {});  // the rows are stored before the next plan
  std::vector<std::vector<float>> rows;
  const size_t vocab = logits.size() / sequences.size();
  for (size_t row = 0; row < sequences.size(); ++row) {
    rows.emplace_back(logits.begin() + row * vocab, logits.begin() + (row + 1) * vocab);
  }
  return rows;
}

const float* TwoRanks::StoredRow(const Sequence& sequence, int layer, int kv_head, uint32_t position) const {
  for (size_t i = 0; i < shards_.size(); ++i) {
    const KvShard& shard = shards_[i];
    if (!shard.HasLayer(layer) || !shard.HasHead(kv_head)) continue;
    const CachedSequence* cached = data_plane(SideOf(sequence.sequence_id, i)).store().Find(sequence.sequence_id);
    const int local = layer - shard.first_layer, head = kv_head - shard.first_kv_head;
    WINNOW_CHECK(cached != nullptr && position < cached->kv.rows(local));
    const auto* block = static_cast<const float*>(cached->kv.row_blocks(local, head)[position / kBlockTokens]);
    return block + (position % kBlockTokens) * layout_.row.elements(layout_.head_dim);
  }
  WINNOW_CHECK(false);
  return nullptr;
}

}  // namespace winnow::test
