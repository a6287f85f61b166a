#include "transport/ucx/ucx_channel.h"

#include <optional>
#include <utility>

#include "transport/channel_address.h"

namespace winnow {

absl::Status UcxChannel::Open() {
  WINNOW_ASSIGN_OR_RETURN(worker_,
                          UcxWorker::Create(
                              *settings_.contexts, pool_, [this](BlockPtr block) { Receive(std::move(block)); },
                              [this](absl::Status status) { NoteError(std::move(status)); },
                              [this](absl::Status status) { NoteNoFrame(std::move(status)); }));
  worker_address_ = worker_->address();
  return absl::OkStatus();
}

std::string UcxChannel::LocalAddress() const {
  ChannelAddress address{ChannelAddress::Kind::kUcx, id(), transport_.options().incarnation, settings_.host, {}};
  AppendText(address.endpoint, worker_address_);
  address.endpoint += paths_.Offers();
  return address.Encode();
}

absl::Status UcxChannel::Connect(std::string_view peer_address) {
  WINNOW_RETURN_IF_ERROR(CheckConnectable());
  WINNOW_ASSIGN_OR_RETURN(const ChannelAddress address,
                          ChannelAddress::Decode(peer_address, ChannelAddress::Kind::kUcx));
  std::string_view endpoint = address.endpoint;
  const std::optional<std::string_view> worker = TakeText(endpoint);
  if (!worker.has_value()) return absl::InvalidArgumentError("peer address names no worker");
  const bool watch_peer = address.host != settings_.host || !settings_.may_use_shared_memory;
  WINNOW_RETURN_IF_ERROR(worker_->Connect(*worker, watch_peer));
  paths_.Connect(endpoint);
  SetPeer(address.channel, address.incarnation, address.host != settings_.host);
  path_is_open_ = !transport_.options().payload_paths.empty();
  SettlePath();
  return absl::OkStatus();
}

std::string_view UcxChannel::payload_path() const {
  return paths_.path() != nullptr && paths_.path()->IsUp().value_or(false) ? paths_.name() : std::string_view();
}

void UcxChannel::Pump() {
  if (worker_ == nullptr) return;
  // Bounded, so that a peer that never stops sending does not keep the other channels waiting.
  constexpr int kMaxRounds = 64;
  int rounds = 0;
  while (rounds < kMaxRounds && worker_->Progress()) ++rounds;
  if (paths_.path() != nullptr) NoteError(paths_.path()->Progress());
  if (path_is_open_) SettlePath();
  TakeArrived();
  if (!link_error_.ok()) {
    if (absl::IsDataLoss(link_error_)) transport_.NoteRefused(/*stray=*/false, link_error_);
    Fail(link_error_);
    transport_.NoteRoom();  // whoever waits shall see it
  }
}

void UcxChannel::ReturnCredit(bool idle) {
  if (worker_ == nullptr) return;
  const uint64_t bytes = consumption_->bytes.load(std::memory_order_relaxed);
  const uint64_t frames = consumption_->frames.load(std::memory_order_relaxed);
  if (frames == returned_frames_) return;
  const bool due = bytes - returned_bytes_ >= transport_.options().window_bytes / 4 ||
                   frames - returned_frames_ >= SendWindow::kMaxFrames / 4;
  constexpr int kIdlePolls = 256;
  if (!due && !idle && ++polls_with_credit_ < kIdlePolls) return;
  polls_with_credit_ = 0;
  returned_bytes_ = bytes;
  returned_frames_ = frames;
  SendCredit(*consumption_);
}

BlockPtr UcxChannel::NewBlock(size_t bytes) {
  PayloadPath* const path = paths_.path();
  std::byte* const payload = path != nullptr && path->IsUp().value_or(false) ? path->Allocate(bytes) : nullptr;
  if (payload == nullptr) return pool_->Take(bytes);
  BlockPtr block = pool_->Take(0);
  block->external = payload;
  block->memory = path->memory();
  block->payload_bytes = static_cast<uint32_t>(bytes);
  return block;
}

absl::Status UcxChannel::Send(BlockPtr block) {
  if (block->memory != nullptr) {
    WINNOW_ASSIGN_OR_RETURN(block->reference, paths_.path()->Send(block->external, block->payload_bytes));
    block->memory.reset();
    block->by_reference = true;
  }
  return worker_->Send(std::move(block));
}

void UcxChannel::Disconnect() {
  worker_.reset();
  arriving_.clear();
  paths_.Drop();
}

void UcxChannel::NoteNoFrame(absl::Status why) {
  if (!has_key()) return NoteError(std::move(why));
  transport_.NoteRefused(/*stray=*/true, why);
}

void UcxChannel::Receive(BlockPtr block) {
  // Before a payload path is asked for what the frame announces, or memory is kept for it.
  if (has_key() && !IsFromPeer(block->header)) {
    return transport_.NoteRefused(/*stray=*/true, absl::NotFoundError("the frame names another channel or sender"));
  }
  block->consumption = consumption_;
  if (block->by_reference) {
    NoteError(paths_.path() != nullptr ? paths_.path()->Expect(*block)
                                       : absl::DataLossError("a payload is announced on a path that there is not"));
    if (!link_error_.ok()) return;
  }
  arriving_.push_back(std::move(block));
}

void UcxChannel::TakeArrived() {
  while (!arriving_.empty()) {
    if (arriving_.front()->by_reference) {
      const absl::StatusOr<bool> arrived = paths_.path()->HasArrived(*arriving_.front());
      if (!arrived.ok()) return NoteError(arrived.status());
      if (!*arrived) return;
    }
    Arrived(std::move(arriving_.front()));
    arriving_.pop_front();
  }
}

void UcxChannel::SettlePath() {
  absl::Status why_none = paths_.why_none();
  if (paths_.path() != nullptr) {
    const absl::StatusOr<bool> up = paths_.path()->IsUp();
    if (up.ok() && !*up) return;
    why_none = Annotate(up.status(), paths_.name());
  }
  path_is_open_ = false;
  if (const auto& tell = transport_.options().on_payload_path; tell) {
    tell(why_none.ok() ? paths_.name() : std::string_view(), why_none);
  }
}

}  // namespace winnow
