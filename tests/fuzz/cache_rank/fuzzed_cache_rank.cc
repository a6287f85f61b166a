#include "tests/fuzz/cache_rank/fuzzed_cache_rank.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cache_rank/replica/replica_rows.h"
#include "common/base/check.h"
#include "common/selection/shard_spec.h"
#include "tests/fuzz/cache_rank/small_specs.h"

namespace winnow::fuzz {
namespace {

constexpr uint64_t kIds = 8;  // of sequences; replicas of them have those behind
constexpr uint32_t kMaxPositions = 320;
constexpr uint32_t kSharedTokens = 64;  // with which all prompts begin
constexpr int kPrompts = 3;
constexpr size_t kBlocks = 256;  // a multiple of the lists, so that one sequence can take all

ServedShape Shape(v1::KvDtype dtype) {
  v1::KvShape shape;
  shape.set_num_layers(2);
  shape.set_num_query_heads(4);
  shape.set_num_kv_heads(2);
  shape.set_head_dim(16);
  shape.set_kv_dtype(dtype);
  for (int i = 0; i < 8; ++i) shape.add_rope_inv_freq(static_cast<float>(std::pow(10000.0, -i / 8.0)));
  shape.set_rope_attention_factor(1);
  shape.set_attention_scale(0.25f);
  return ParseKvShape(shape).value();
}

ServedShape DrawShape(CallReader& in) {
  constexpr v1::KvDtype kDtypes[] = {v1::KV_DTYPE_F32, v1::KV_DTYPE_BF16, v1::KV_DTYPE_INT8};
  return Shape(kDtypes[in.Below(3)]);
}

}  // namespace

FuzzedCacheRank::FuzzedCacheRank(CallReader& in)
    : in_(in),
      shape_(DrawShape(in)),
      kernels_(CpuKernels("portable").value()),
      executor_(kernels_->new_executor(1)),
      transport_(NewInprocTransport({.incarnation = 1, .window_bytes = size_t{1} << 20})),
      intake_(executor_.get(), &metrics_),
      rows_(shape_.layout),
      now_(std::chrono::steady_clock::now()) {
  DataPlane::Options options{.memory_bytes = kBlocks * BlockBytes(shape_.layout)};
  if (in.Below(3) == 2) options.tiers.fast.memory_bytes = size_t{1} << 20;
  options.idle_prefix_bytes = in.Below(3) == 2 ? 0 : options.memory_bytes;
  options.scrub_bytes_per_s = 1 << 20;
  data_plane_ = DataPlane::Create(options, shape_, kernels_, executor_.get(), &metrics_).value();
  WINNOW_CHECK(data_plane_->blocks().total() == kBlocks);
  transport_->SetHandler([this](Channel& channel, ReceivedFrame frame) { data_plane_->HandleFrame(channel, frame); });
  OpenLink();
}

FuzzedCacheRank::~FuzzedCacheRank() {
  Work();
  for (const uint64_t id : store().sequence_ids()) rows_.ExpectIntact(*store().Find(id), damaged_);
  Work();
  for (const uint64_t id : store().sequence_ids()) {
    WINNOW_CHECK(data_plane_->ReleaseSequence(id, SequenceStore::kAnyEpoch).ok());
    rows_.Gone(id);
  }
  Work();
  WINNOW_CHECK(store().sequence_ids().empty() && store().active() == 0 && store().replicas() == 0);
  const KvBlockPool& blocks = data_plane_->blocks();
  WINNOW_CHECK(blocks.reserved() == 0);
  for (const std::unique_ptr<Link>& link : links_) {
    if (!link->closed) data_plane_->CloseLink(link->id, absl::CancelledError("the end"));
  }
  links_.clear();
  // What idle prompts still hold gives way to a sequence that takes everything.
  OpenLink();
  constexpr uint64_t kLast = 100;
  const size_t most = kBlocks / layout().num_lists() * kBlockTokens;
  const auto opened = data_plane_->OpenSequence(
      links_[0]->id,
      {.sequence_id = kLast, .spec = SmallSpecs(layout()).front(), .max_positions = static_cast<uint32_t>(most)});
  WINNOW_CHECK(opened.ok() && blocks.free() == 0 && blocks.used() == 0);
  WINNOW_CHECK(data_plane_->ReleaseSequence(kLast, opened->attach_epoch).ok());
  WINNOW_CHECK(blocks.free() == kBlocks);
  data_plane_->CloseLink(links_[0]->id, absl::CancelledError("the end"));
  links_.clear();
  data_plane_.reset();
}

void FuzzedCacheRank::Call() {
  static constexpr void (FuzzedCacheRank::*kCalls[])() = {
      &FuzzedCacheRank::OpenSequence,
      &FuzzedCacheRank::SendPrompt,
      &FuzzedCacheRank::SendStep,
      &FuzzedCacheRank::Attach,
      &FuzzedCacheRank::ReleaseOrDetach,
      &FuzzedCacheRank::Fork,
      &FuzzedCacheRank::Feed,
      &FuzzedCacheRank::OpenLink,
      &FuzzedCacheRank::CloseLink,
      &FuzzedCacheRank::UndoAttach,
      &FuzzedCacheRank::PushPrefix,
      &FuzzedCacheRank::EndFeed,
      &FuzzedCacheRank::PassTime,
      &FuzzedCacheRank::FlipBit,
      &FuzzedCacheRank::SendRange,
      &FuzzedCacheRank::SendPromptQueries,
      &FuzzedCacheRank::SendStepRows,
      &FuzzedCacheRank::SendPrefixQueries,
      &FuzzedCacheRank::SendTransferFailed,
      &FuzzedCacheRank::SendAnything,
  };
  (this->*kCalls[in_.Below(std::size(kCalls))])();
  ForgetGone();
  rows_.ExpectUnchanged(store());
  if (in_.OneIn(4)) return;  // frames and calls that come before there was time for any work
  Work();
}

void FuzzedCacheRank::OpenLink() {
  constexpr size_t kMostLinks = 3;
  if (links_.size() >= kMostLinks) return;
  auto link = std::make_unique<Link>();
  link->transport = NewInprocTransport({.incarnation = 100 + next_call_++, .window_bytes = size_t{1} << 20});
  link->transport->SetHandler([](Channel&, const ReceivedFrame&) {});
  link->channel = link->transport->NewChannel().value();
  std::unique_ptr<Channel> theirs = transport_->NewChannel().value();
  WINNOW_CHECK(link->channel->Connect(theirs->LocalAddress()).ok());
  WINNOW_CHECK(theirs->Connect(link->channel->LocalAddress()).ok());
  link->id = data_plane_->OpenLink("inference-0", std::move(theirs),
                                   [link = link.get()](const absl::Status&) { link->closed = true; });
  links_.push_back(std::move(link));
}

void FuzzedCacheRank::CloseLink() {
  Link* const link = AnyLink();
  if (link == nullptr) return;
  data_plane_->CloseLink(link->id, absl::CancelledError("the peer is gone"));
  WINNOW_CHECK(link->closed && store().CountAttached(link->id) == 0);
}

void FuzzedCacheRank::OpenSequence() {
  const uint64_t id = AnyId();
  const uint32_t link = AnyLinkId();
  SequenceStore::OpenOptions options = AnyOpening(id);
  if (in_.OneIn(8)) options.max_cached_tokens = in_.Byte();
  options.pulls_prefix = in_.OneIn(8);
  const size_t reserved = data_plane_->blocks().reserved();
  const auto opened = data_plane_->OpenSequence(link, options);
  if (!opened.ok()) {
    WINNOW_CHECK(!opened.status().message().empty() && data_plane_->blocks().reserved() == reserved);
    return;
  }
  const CachedSequence* const sequence = store().Find(id);
  WINNOW_CHECK(sequence != nullptr && sequence->channel == link && opened->attach_epoch == sequence->attach_epoch);
  WINNOW_CHECK(opened->cached_tokens == sequence->kv.watermark() && opened->cached_tokens % kBlockTokens == 0);
  WINNOW_CHECK(opened->cached_tokens == 0 || opened->cached_tokens < options.prompt_tokens);
  prompts_[id] = options.prompt_token_ids.empty() ? -1 : static_cast<int>(options.prompt_token_ids.back());
  variant_ = -1;
  rows_.Opened(*sequence, polluted_ ? nullptr : StoredRows::VariantOf([this](uint64_t sequence_id, uint32_t position) {
    return VariantOf(sequence_id, position);
  }));
}

void FuzzedCacheRank::Attach() {
  const CachedSequence* const sequence = AnySequence();
  const uint64_t id = sequence == nullptr ? AnyId() : sequence->id;
  const uint32_t link = AnyLinkId();
  const uint32_t epoch = sequence == nullptr ? 0 : sequence->attach_epoch;
  const uint32_t max_restart = in_.Near(sequence == nullptr ? 0 : sequence->kv.watermark());
  KvShard shard = sequence == nullptr ? KvShard() : sequence->shard;
  if (in_.OneIn(8)) shard = AnyShard();
  const uint64_t call = in_.OneIn(2) ? next_call_++ : in_.Below(16);
  const auto attached = data_plane_->AttachSequence(link, id, max_restart,
                                                    {.shard = shard, .wants_all_rows = in_.OneIn(4), .call = call});
  if (!attached.ok()) return;
  WINNOW_CHECK(sequence != nullptr && attached->attach_epoch == epoch + 1 && sequence->channel == link);
  WINNOW_CHECK(attached->restart_position <= max_restart && attached->restart_position == sequence->kv.watermark());
  WINNOW_CHECK(!sequence->is_replica && sequence->feed == 0);
  rows_.Truncated(*sequence);
}

void FuzzedCacheRank::UndoAttach() {
  WINNOW_CHECK(data_plane_->UndoAttach(AnyLinkId(), AnyId(), in_.OneIn(2) ? next_call_ - 1 : in_.Below(16)).ok());
}

void FuzzedCacheRank::Fork() {
  const CachedSequence* const source = AnySequence();
  const uint64_t source_id = source == nullptr ? AnyId() : source->id, id = AnyId();
  const auto forked = data_plane_->ForkSequence(AnyLinkId(), source_id, id, in_.Near(kMaxPositions));
  if (!forked.ok()) return;
  const CachedSequence* const fork = store().Find(id);
  WINNOW_CHECK(source != nullptr && fork != nullptr && forked->position == source->kv.watermark());
  prompts_[id] = prompts_[source_id];
  rows_.Forked(*source, *fork);
}

void FuzzedCacheRank::ReleaseOrDetach() {
  const CachedSequence* const sequence = AnySequence();
  const uint64_t id = sequence == nullptr ? AnyId() : sequence->id;
  const uint32_t current = sequence == nullptr ? 1 : sequence->attach_epoch;
  const uint32_t epoch = in_.OneIn(4) ? SequenceStore::kAnyEpoch : in_.Near(current);
  if (in_.OneIn(2)) {
    const absl::Status released = data_plane_->ReleaseSequence(id, epoch);
    WINNOW_CHECK(released.ok() == (sequence == nullptr || epoch == current || epoch == SequenceStore::kAnyEpoch));
    WINNOW_CHECK((store().Find(id) == nullptr) == (released.ok() || sequence == nullptr));
    if (store().Find(id) == nullptr) rows_.Gone(id);
  } else if (data_plane_->DetachSequence(id, epoch).ok()) {
    WINNOW_CHECK(store().Find(id) == nullptr || !store().Find(id)->attached());
  }
}

void FuzzedCacheRank::PushPrefix() {
  const CachedSequence* const sequence = AnySequence();
  if (sequence == nullptr) return;
  const uint32_t here = sequence->kv.watermark();
  (void)data_plane_->PushPrefix(in_.OneIn(8) ? AnyLinkId() : sequence->channel, sequence->id,
                                in_.Near(sequence->attach_epoch),
                                {.layer = in_.Near(static_cast<uint32_t>(sequence->shard.first_layer)),
                                 .num_layers = in_.Near(1),
                                 .sinks = in_.Near(0),
                                 .first = in_.Near(0),
                                 .end = in_.Near(here)});
}

v1::ReplicaState FuzzedCacheRank::Feed(uint64_t feed, const v1::ReplicaUpdate& update) {
  v1::FeedRequest request;
  *request.add_updates() = update;
  const v1::FeedResponse response = intake_.Take(*data_plane_, feed, request);
  WINNOW_CHECK(response.states_size() == 1 && response.states(0).sequence_id() == update.sequence_id());
  return response.states(0);
}

void FuzzedCacheRank::Feed() {
  const CachedSequence* const source = AnySequence();
  const uint64_t feed = 1 + in_.Below(2);
  v1::ReplicaUpdate update;
  update.set_sequence_id(source == nullptr || in_.OneIn(8) ? AnyId() : source->id % kIds + kIds);
  const uint64_t id = update.sequence_id();
  const CachedSequence* const before = store().Find(id);
  const bool was_replica = before != nullptr && before->is_replica;
  switch (in_.Below(4)) {
    case 0: {
      int prompt = -1;
      if (source != nullptr && !in_.OneIn(4)) {
        *update.mutable_opening() = OpeningOf(*source);
        prompt = prompts_[source->id];
      } else {
        const SequenceStore::OpenOptions options = AnyOpening(id);
        const CachedSequence* const like = source;
        if (like != nullptr) *update.mutable_opening() = OpeningOf(*like);
        v1::ReplicaOpening& opening = *update.mutable_opening();
        opening.set_max_positions(options.max_positions);
        opening.set_prompt_tokens(options.prompt_tokens);
        opening.mutable_prompt_token_ids()->Assign(options.prompt_token_ids.begin(), options.prompt_token_ids.end());
        opening.set_prefix_salt(options.prefix_salt);
        *opening.mutable_shard() = ToProto(options.shard);
        if (!options.prompt_token_ids.empty()) prompt = static_cast<int>(options.prompt_token_ids.back());
      }
      const v1::ReplicaState state = Feed(feed, update);
      const CachedSequence* const replica = store().Find(id);
      const bool has_room = state.code() != static_cast<uint32_t>(absl::StatusCode::kResourceExhausted) &&
                            state.code() != static_cast<uint32_t>(absl::StatusCode::kOutOfRange);
      if (state.code() == 0) {
        WINNOW_CHECK(replica != nullptr && replica->is_replica && replica->feed == feed && !replica->attached());
        prompts_[id] = prompt;
        variant_ = -1;
        rows_.Opened(*replica,
                     polluted_ ? nullptr : StoredRows::VariantOf([this](uint64_t sequence, uint32_t position) {
                       return VariantOf(sequence, position);
                     }));
      } else if (replica == nullptr) {
        WINNOW_CHECK(before == nullptr || (was_replica && !has_room));
        rows_.Gone(id);
      }
      return;
    }
    case 1: {
      if (source == nullptr || source->kv.watermark() == 0 || source->kv.is_damaged()) return;
      const uint32_t stored = before == nullptr ? 0 : before->kv.watermark();
      const uint32_t first =
          std::min(in_.Near(std::min(stored, source->kv.watermark() - 1)), source->kv.watermark() - 1);
      const uint32_t count = 1 + in_.Byte() % (source->kv.watermark() - first);
      v1::ReplicaRows& rows = *update.mutable_rows();
      rows = RowsOf(*source, first, count, executor_.get());
      if (in_.OneIn(4)) {
        rows.set_first_position(in_.Near(rows.first_position()));
        rows.set_num_positions(in_.Near(rows.num_positions()));
        rows.set_first_kept_position(in_.Near(rows.first_kept_position()));
        rows.set_first_journaled_position(in_.Near(rows.first_journaled_position()));
        rows.set_first_query_position(in_.Near(rows.first_query_position()));
        rows.set_num_queries(in_.Near(rows.num_queries()));
        if (in_.OneIn(2)) rows.mutable_kv_rows()->resize(rows.kv_rows().size() * in_.Below(4) / 2);
      }
      polluted_ = polluted_ || prompts_[id] != prompts_[source->id] || rows.first_position() != first ||
                  source->kv.is_damaged();
      const v1::ReplicaState state = Feed(feed, update);
      if (state.code() != 0) return;
      WINNOW_CHECK(was_replica && state.stored_positions() == before->kv.watermark());
      rows_.Replaced(*before, rows.first_position(), rows.num_positions(),
                     reinterpret_cast<const std::byte*>(rows.kv_rows().data()));
      return;
    }
    case 2:
      update.set_release(true);
      (void)Feed(feed, update);
      WINNOW_CHECK(store().Find(id) != nullptr || before == nullptr || was_replica);
      if (store().Find(id) == nullptr) rows_.Gone(id);
      return;
    default:
      update.set_detach(true);
      (void)Feed(feed, update);
  }
}

void FuzzedCacheRank::EndFeed() {
  const uint64_t feed = 1 + in_.Below(2);
  store().EndFeed(feed, now_);
}

void FuzzedCacheRank::PassTime() {
  const bool expires = in_.OneIn(4);
  now_ += expires ? std::chrono::milliseconds(std::chrono::hours(1)) : std::chrono::milliseconds(in_.Byte());
  std::map<uint64_t, uint32_t> attached;
  for (const uint64_t id : store().sequence_ids()) {
    const CachedSequence& sequence = *store().Find(id);
    if (sequence.attached() || sequence.feed != 0) attached[id] = sequence.channel;
  }
  data_plane_->Tick(now_);
  for (const auto& [id, channel_id] : attached) {
    const uint32_t channel = channel_id;
    const auto is_closed = [&](const auto& link) { return link->id == channel && link->closed; };
    WINNOW_CHECK(store().Find(id) != nullptr || std::any_of(links_.begin(), links_.end(), is_closed));
  }
  for (uint64_t id = 0; id <= 2 * kIds; ++id) {
    if (store().Find(id) == nullptr) rows_.Gone(id);
  }
  std::erase_if(links_, [](const auto& link) { return link->closed; });
}

void FuzzedCacheRank::FlipBit() {
  const CachedSequence* const sequence = AnySequence();
  if (sequence == nullptr || !in_.OneIn(4)) return;
  const auto layer = static_cast<int>(in_.Below(sequence->layers.size()));
  const auto head = static_cast<int>(in_.Below(sequence->num_kv_heads()));
  if (sequence->kv.rows(layer) == 0) return;
  sequence->kv.SettleRows(layer);
  const uint32_t position = in_.Byte() % sequence->kv.rows(layer);
  const void* const block = sequence->kv.row_blocks(layer, head)[position / kBlockTokens];
  if (block == nullptr) return;
  auto* const row = static_cast<std::byte*>(const_cast<void*>(block)) + position % kBlockTokens * layout().row_bytes();
  row[in_.Byte() % layout().row_bytes()] ^= std::byte{8};
  damaged_ = true;
}

FuzzedCacheRank::Link* FuzzedCacheRank::AnyLink() {
  return links_.empty() ? nullptr : links_[in_.Below(links_.size())].get();
}

uint32_t FuzzedCacheRank::AnyLinkId() {
  const Link* const link = AnyLink();
  return in_.Near(link == nullptr ? 1 : link->id);
}

uint64_t FuzzedCacheRank::AnyId() {
  return in_.Below(2 * kIds);
}

const CachedSequence* FuzzedCacheRank::AnySequence() {
  std::vector<uint64_t> ids = store().sequence_ids();
  if (ids.empty()) return nullptr;
  std::sort(ids.begin(), ids.end());
  return store().Find(ids[in_.Below(ids.size())]);
}

FuzzedCacheRank::Link* FuzzedCacheRank::LinkOf(const CachedSequence& sequence) {
  if (in_.OneIn(16)) return AnyLink();
  for (const std::unique_ptr<Link>& link : links_) {
    if (link->id == sequence.channel) return link.get();
  }
  return AnyLink();
}

SelectionSpec FuzzedCacheRank::AnySpec(const KvShard& shard) {
  const std::vector<SelectionSpec> specs = SmallSpecs(layout());
  const SelectionSpec& spec = specs[in_.Below(specs.size())];
  if (shard.num_layers == 0 || !CheckShard(layout(), shard).ok()) return spec;
  return SpecOfShard(spec, layout(), shard);
}

KvShard FuzzedCacheRank::AnyShard() {
  const KvShard shards[] = {{}, {0, 1, 0, 2}, {1, 1, 0, 2}, {0, 2, 1, 1}};
  if (!in_.OneIn(8)) return shards[in_.OneIn(4) ? in_.Below(4) : 0];
  v1::KvShard proto;
  proto.set_first_kv_head(in_.Near(0));
  proto.set_num_kv_heads(in_.Near(2));
  proto.set_first_layer(in_.Near(0));
  proto.set_num_layers(in_.Near(2));
  return FromProto(proto);
}

SequenceStore::OpenOptions FuzzedCacheRank::AnyOpening(uint64_t id) {
  const KvShard shard = AnyShard();
  SequenceStore::OpenOptions options{.sequence_id = id, .spec = AnySpec(shard), .shard = shard};
  options.max_positions = in_.Near(kMaxPositions);
  options.prompt_tokens = in_.Near(1 + in_.Byte());
  if (in_.OneIn(2) || options.prompt_tokens > kMaxPositions) return options;
  const uint32_t prompt = in_.Below(kPrompts);
  options.prompt_token_ids.assign(options.prompt_tokens, prompt);
  for (uint32_t i = 0; i < std::min(kSharedTokens, options.prompt_tokens); ++i) {
    options.prompt_token_ids[i] = options.prompt_tokens > kSharedTokens ? kPrompts : prompt;
  }
  options.prefix_salt = "salt";
  return options;
}

uint8_t FuzzedCacheRank::VariantOf(uint64_t id, uint32_t position) const {
  if (variant_ >= 0) return static_cast<uint8_t>(variant_);
  const auto prompt = prompts_.find(id);
  if (prompt == prompts_.end() || prompt->second < 0) return static_cast<uint8_t>(100 + id);
  const CachedSequence* const sequence = data_plane_->store().Find(id);
  const bool is_short = sequence == nullptr || sequence->prompt_tokens <= kSharedTokens;
  return static_cast<uint8_t>(position < kSharedTokens && !is_short ? kPrompts : prompt->second);
}

void FuzzedCacheRank::DrawVariant() {
  const uint8_t byte = in_.Byte();
  variant_ = byte >= 252 ? byte : -1;
  strange_ = byte == 251;
  polluted_ = polluted_ || variant_ >= 0;
}

void FuzzedCacheRank::ForgetGone() {
  for (uint64_t id = 0; damaged_ && id <= 2 * kIds; ++id) {
    if (store().Find(id) == nullptr) rows_.Gone(id);
  }
}

void FuzzedCacheRank::Work() {
  constexpr int kEnough = 20000;
  int rounds = 0;
  for (int idle = 0; idle < 3; ++rounds) {
    WINNOW_CHECK(rounds < kEnough);
    int moved = transport_->Progress();
    for (const std::unique_ptr<Link>& link : links_) moved += link->transport->Progress();
    const bool worked = data_plane_->RunOnce();
    idle = moved > 0 || worked ? 0 : idle + 1;
  }
  ForgetGone();
  rows_.ExpectUnchanged(store());
  const KvBlockPool& blocks = data_plane_->blocks();
  WINNOW_CHECK(blocks.used() + blocks.reserved() <= blocks.total());
  size_t attached = 0;
  for (const uint64_t id : store().sequence_ids()) attached += store().Find(id)->attached();
  WINNOW_CHECK(store().active() == attached);
}

}  // namespace winnow::fuzz
