#include "inference_rank/links/shard_calls.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "common/selection/selection_proto.h"
#include "common/selection/shard_spec.h"
#include "inference_rank/links/shard_release.h"

namespace winnow {
namespace {

// Which of several cache ranks an error comes from.
absl::Status From(const absl::Status& status, const ShardLink& shard, size_t num_shards) {
  return num_shards == 1 ? status : Annotate(status, absl::StrCat("cache rank ", shard.link->peer().rank()));
}

// The epoch of a sequence from its opening to its first attachment.
constexpr uint32_t kFirstEpoch = 1;

// The call may have done its work, or may do it yet: a cache rank that was stopped reads what came meanwhile when it
// goes on, and gives it as much time as if it had just come.
bool MayHaveHappened(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status) || absl::IsCancelled(status);
}

uint32_t Lowest(const std::vector<uint32_t>& positions) {
  return *std::min_element(positions.begin(), positions.end());
}

}  // namespace

absl::StatusOr<ShardCalls::Attached> ShardCalls::Open(std::span<const ShardPlace> places, const SelectionSpec& spec,
                                                      v1::OpenSequenceRequest request,
                                                      const TraceContext* trace) const {
  Attached opened;
  std::vector<ShardLink> doubtful;
  absl::Cleanup undo = [&] { Undo(opened.shards, std::move(doubtful), request.sequence_id(), /*detach=*/false); };
  request.set_pulls_prefix(true);
  const uint64_t state_bytes = request.state_bytes();
  std::vector<uint32_t> cached;
  const auto open = [&](size_t i) -> absl::Status {
    ShardLink& shard = opened.shards[i];
    request.set_channel_id(shard.link->channel_id());
    request.set_state_bytes(i == 0 ? state_bytes : 0);  // the first keeps what has no rows
    *request.mutable_shard() = ToProto(shard.shard);
    *request.mutable_selection() = ToProto(SpecOfShard(spec, layout, shard.shard));
    const absl::StatusOr<v1::OpenSequenceResponse> response = shard.link->Open(request, timeout, trace);
    if (MayHaveHappened(response.status())) {
      doubtful.push_back(shard);
      doubtful.back().attach_epoch = kFirstEpoch;
    }
    if (!response.ok()) return From(response.status(), shard, places.size());
    shard.attach_epoch = response->attach_epoch();
    cached[i] = response->cached_tokens();
    return absl::OkStatus();
  };
  for (const ShardPlace& place : places) {
    WINNOW_ASSIGN_OR_RETURN(std::shared_ptr<CacheLink> link, links.Get(place.cache_rank, place.shard));
    opened.shards.push_back({.link = std::move(link), .shard = place.shard});
    cached.push_back(0);
    WINNOW_RETURN_IF_ERROR(open(opened.shards.size() - 1));
  }
  // Prefixes are evicted by each cache rank for itself.
  for (bool differ = true; differ;) {
    differ = false;
    const uint32_t lowest = Lowest(cached);
    request.set_max_cached_tokens(lowest);
    for (size_t i = 0; i < opened.shards.size(); ++i) {
      if (cached[i] == lowest) continue;
      Release({&opened.shards[i], 1}, request.sequence_id(), /*detach=*/false);
      opened.shards[i].attach_epoch = 0;
      WINNOW_RETURN_IF_ERROR(open(i));
      differ |= cached[i] != lowest;
    }
  }
  opened.position = opened.cached_tokens = cached.front();
  std::move(undo).Cancel();
  return opened;
}

absl::StatusOr<ShardCalls::Attached> ShardCalls::Attach(std::span<const ShardPlace> places,
                                                        v1::AttachSequenceRequest request,
                                                        const TraceContext* trace) const {
  Attached attached;
  std::vector<ShardLink> doubtful;
  bool lost = false;
  absl::Cleanup undo = [&] { Undo(attached.shards, std::move(doubtful), request.sequence_id(), /*detach=*/!lost); };
  std::vector<uint32_t> restarts;
  const uint64_t state_bytes = request.state_bytes();
  const auto attach = [&](size_t i) -> absl::Status {
    ShardLink& shard = attached.shards[i];
    request.set_channel_id(shard.link->channel_id());
    request.set_state_bytes(i == 0 ? state_bytes : 0);
    *request.mutable_shard() = ToProto(shard.shard);
    request.set_call(shard.link->NextCall());
    const absl::StatusOr<v1::AttachSequenceResponse> response = shard.link->Attach(request, timeout, trace);
    lost |= absl::IsNotFound(response.status());
    if (MayHaveHappened(response.status())) {
      doubtful.push_back({.link = shard.link, .shard = shard.shard, .doubtful_call = request.call()});
    }
    if (!response.ok()) return From(response.status(), shard, places.size());
    shard.attach_epoch = response->attach_epoch();
    restarts[i] = response->restart_position();
    if (i == 0) attached.cached_tokens = response->cached_tokens();  // as in all others: they were opened together
    return absl::OkStatus();
  };
  absl::Status failure;
  for (const ShardPlace& place : places) {
    WINNOW_ASSIGN_OR_RETURN(std::shared_ptr<CacheLink> link, links.Get(place.cache_rank, place.shard));
    attached.shards.push_back({.link = std::move(link), .shard = place.shard});
    restarts.push_back(0);
    // The others are attached all the same: if this one has lost its shard they are to be freed.
    const absl::Status status = attach(attached.shards.size() - 1);
    if (failure.ok()) failure = status;
  }
  WINNOW_RETURN_IF_ERROR(failure);
  // A shard may have to go back further than it was asked to, for an anchor, and then the others follow.
  for (bool differ = true; differ;) {
    differ = false;
    const uint32_t lowest = Lowest(restarts);
    request.set_max_restart_position(lowest);
    for (size_t i = 0; i < attached.shards.size(); ++i) {
      if (restarts[i] == lowest) continue;
      WINNOW_RETURN_IF_ERROR(attach(i));
      differ |= restarts[i] != lowest;
    }
  }
  attached.position = restarts.front();
  std::move(undo).Cancel();
  return attached;
}

absl::StatusOr<ShardCalls::Attached> ShardCalls::Fork(std::span<const ShardLink> source,
                                                      v1::ForkSequenceRequest request, uint32_t position,
                                                      const TraceContext* trace) const {
  Attached forked{.shards = {}, .position = position};
  std::vector<ShardLink> doubtful;
  absl::Cleanup undo = [&] { Undo(forked.shards, std::move(doubtful), request.sequence_id(), /*detach=*/false); };
  for (const ShardLink& of_source : source) {
    forked.shards.push_back({.link = of_source.link, .shard = of_source.shard});
    ShardLink& shard = forked.shards.back();
    request.set_channel_id(shard.link->channel_id());
    const absl::StatusOr<v1::ForkSequenceResponse> response = shard.link->Fork(request, timeout, trace);
    if (MayHaveHappened(response.status())) {
      doubtful.push_back(shard);
      doubtful.back().attach_epoch = kFirstEpoch;
    }
    if (!response.ok()) return From(response.status(), shard, source.size());
    shard.attach_epoch = response->attach_epoch();
    if (response->position() != position) {
      return From(absl::InternalError(absl::StrCat("the cache rank forked at position ", response->position(),
                                                   " instead of ", position)),
                  shard, source.size());
    }
  }
  std::move(undo).Cancel();
  return forked;
}

absl::Status ShardCalls::PushPrefix(std::span<const ShardLink> shards, uint64_t sequence_id, int first_layer,
                                    int num_layers, const PrefixRows& rows) const {
  for (const ShardLink& shard : shards) {
    const int first = std::max(first_layer, shard.shard.first_layer);
    const int last = std::min(first_layer + num_layers - 1, shard.shard.last_layer());
    if (first > last) continue;
    v1::PushPrefixRequest request;
    request.set_channel_id(shard.link->channel_id());
    request.set_sequence_id(sequence_id);
    request.set_attach_epoch(shard.attach_epoch);
    request.set_layer(static_cast<uint32_t>(first));
    request.set_more_layers(static_cast<uint32_t>(last - first));
    request.set_sink_positions(rows.sinks);
    request.set_first_position(rows.first);
    request.set_end_position(rows.end);
    WINNOW_RETURN_IF_ERROR(From(shard.link->PushPrefix(request, timeout), shard, shards.size()));
  }
  return absl::OkStatus();
}

void ShardCalls::Undo(std::span<const ShardLink> opened, std::vector<ShardLink> doubtful, uint64_t sequence_id,
                      bool detach) const {
  std::vector<ShardLink> later = Release(opened, sequence_id, detach);
  later.insert(later.end(), doubtful.begin(), doubtful.end());
  if (release_later && !later.empty()) release_later(std::move(later), sequence_id, detach);
}

std::vector<ShardLink> ShardCalls::Release(std::span<const ShardLink> shards, uint64_t sequence_id, bool detach) const {
  std::vector<ShardLink> unanswered;
  for (const ShardLink& shard : shards) {
    const ShardRelease release(shard, sequence_id, detach);
    // Who has lost its link does not answer soon.
    const bool is_over = shard.link->alive() ? release.Call(timeout) : !release.IsNeeded();
    if (!is_over) unanswered.push_back(shard);
  }
  return unanswered;
}

}  // namespace winnow
