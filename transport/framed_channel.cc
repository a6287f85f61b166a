#include "transport/framed_channel.h"

#include <utility>

#include "common/base/check.h"
#include "transport/framed_transport.h"
#include "transport/wire/wire_check.h"

namespace winnow {
namespace {

void ReleaseUnsent(void* owner, std::byte* /*payload*/) {
  const BlockPtr block(static_cast<Block*>(owner));
  block->window->Unreserve(block->payload_bytes);
}

void ReleaseReceived(void* owner, const std::byte* /*payload*/, size_t bytes) {
  BlockPtr block(static_cast<Block*>(owner));
  const std::shared_ptr<Consumption> consumption = std::move(block->consumption);
  block.reset();
  consumption->Consume(bytes);
}

}  // namespace

FramedChannel::FramedChannel(FramedTransport& transport, uint32_t id)
    : transport_(transport),
      window_(std::make_shared<SendWindow>(transport.options().window_bytes)),
      pool_(std::make_shared<BlockPool>()),
      id_(id) {
  transport_.Add(*this);
}

FramedChannel::~FramedChannel() {
  transport_.Remove(*this);
}

absl::Status FramedChannel::CheckAllocate(size_t bytes) const {
  if (!failed_.ok()) return failed_;
  if (!connected_) return absl::FailedPreconditionError("channel is not connected");
  if (bytes > wire::kMaxPayloadBytes) {
    return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes exceed the largest payload"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SendBuffer> FramedChannel::AllocateSpare(size_t bytes) {
  WINNOW_RETURN_IF_ERROR(CheckAllocate(bytes));
  UpdateWindow(/*starved=*/false);
  if (!window_->ReserveSpare(bytes)) return absl::ResourceExhaustedError("no send window to spare");
  return TakeBlock(bytes);
}

absl::StatusOr<SendBuffer> FramedChannel::AllocateBulk(size_t bytes) {
  return AllocateFrom(&SendWindow::ReserveBulk, bytes, "the window for bulk is used up");
}

absl::StatusOr<SendBuffer> FramedChannel::Allocate(size_t bytes) {
  return AllocateFrom(&SendWindow::Reserve, bytes, "send window is used up");
}

absl::StatusOr<SendBuffer> FramedChannel::AllocateFrom(bool (SendWindow::*reserve)(size_t), size_t bytes,
                                                       const char* used_up) {
  WINNOW_RETURN_IF_ERROR(CheckAllocate(bytes));
  UpdateWindow(/*starved=*/false);
  if (!(*window_.*reserve)(bytes)) {
    UpdateWindow(/*starved=*/true);
    if (!(*window_.*reserve)(bytes)) return absl::ResourceExhaustedError(used_up);
  }
  return TakeBlock(bytes);
}

SendBuffer FramedChannel::TakeBlock(size_t bytes) {
  BlockPtr block = NewBlock(bytes);
  block->window = window_;
  const std::span<std::byte> payload = block->bytes();
  return SendBuffer(payload, block.release(), ReleaseUnsent);
}

absl::Status FramedChannel::Post(const wire::FrameHeader& header, SendBuffer buffer) {
  if (!failed_.ok()) return failed_;
  if (!connected_) return absl::FailedPreconditionError("channel is not connected");
  if (buffer.payload().data() == nullptr) return absl::InvalidArgumentError("buffer was not allocated");
  if (!IsKnownFrameType(header.type) || header.type == wire::FrameType::kCredit) {
    return absl::InvalidArgumentError(
        absl::StrCat("frames of type ", static_cast<int>(header.type), " cannot be posted"));
  }
  WINNOW_CHECK(static_cast<Block*>(buffer.owner())->pool == pool_);  // else it is another channel's buffer
  const std::optional<uint32_t> known_checksum = buffer.checksum();
  BlockPtr block(static_cast<Block*>(buffer.Release()));
  const size_t bytes = block->payload_bytes;
  window_->Sent(bytes);
  block->window.reset();
  block->header = header;
  block->header.frame_number = ++last_sent_frame_;
  Seal(*block, known_checksum.has_value() ? PayloadChecksum(*known_checksum) : transport_.checksum());

  PostFault fault = PostFault::kNone;
  if (transport_.faults()) fault = transport_.faults()(block->header, block->bytes());
  if (fault == PostFault::kDrop) return absl::OkStatus();
  absl::Status sent = fault == PostFault::kFail ? absl::UnavailableError("injected fault") : Send(std::move(block));
  if (!sent.ok()) {
    Fail(Annotate(sent, "post"));
    return failed_;
  }
  ++transport_.mutable_counters().frames_sent;
  return absl::OkStatus();
}

void FramedChannel::Close() {
  Fail(absl::CancelledError("channel was closed"));
}

void FramedChannel::Fail(absl::Status status) {
  if (!failed_.ok()) return;
  failed_ = std::move(status);
  arrived_.clear();
  Disconnect();
}

void FramedChannel::SetPeer(uint32_t peer_channel, uint64_t peer_incarnation, bool crosses_hosts) {
  peer_channel_ = peer_channel;
  peer_incarnation_ = peer_incarnation;
  crosses_hosts_ = crosses_hosts;
  connected_ = true;
}

absl::StatusOr<LinkProtection> FramedChannel::DecideProtection(DataPlaneMode caller) {
  const TransportOptions& options = transport_.options();
  LinkProtection protection;
  WINNOW_ASSIGN_OR_RETURN(protection.level,
                          ChooseProtection(caller, options.data_plane_mode,
                                           {.key_is_secret = options.keys_are_secret,
                                            .crosses_hosts = crosses_hosts_,
                                            .crosses_processes = transport_.capabilities().crosses_processes}));
  if (protection.level != Protection::kPlain) {
    WINNOW_ASSIGN_OR_RETURN(protection.key, SessionKey::Make());
  }
  WINNOW_RETURN_IF_ERROR(SealBy(protection, FrameSeal::End::kAnswerer));
  return protection;
}

absl::Status FramedChannel::TakeProtection(const LinkProtection& decided) {
  const DataPlaneMode mode = transport_.options().data_plane_mode;
  // The peer was told the mode, and has decided with it: this guards against one that does not do what it was told.
  if ((mode == DataPlaneMode::kEncrypted && decided.level != Protection::kEncrypted) ||
      (mode == DataPlaneMode::kAuthenticated && decided.level != Protection::kAuthenticated)) {
    return absl::FailedPreconditionError(absl::StrCat("the peer makes the link ", AbslSv(ProtectionName(decided.level)),
                                                      ", --data-plane here is ", AbslSv(ModeName(mode))));
  }
  return SealBy(decided, FrameSeal::End::kCaller);
}

absl::Status FramedChannel::SealBy(const LinkProtection& protection, FrameSeal::End end) {
  if (!failed_.ok()) return failed_;
  if (!connected_) return absl::FailedPreconditionError("channel is not connected");
  if (last_sent_frame_ + last_sent_credit_ + last_arrived_frame_ + last_arrived_credit_ > 0 || has_key()) {
    return absl::FailedPreconditionError("frames of the channel are under way");
  }
  if (protection.level != Protection::kPlain) {
    WINNOW_ASSIGN_OR_RETURN(seal_, FrameSeal::Create(protection, end));
  }
  if (const auto& tell = transport_.options().on_protection; tell) tell(protection.level);
  return absl::OkStatus();
}

void FramedChannel::Seal(Block& block, const PayloadChecksum& checksum) {
  FinishHeader(block.header);
  if (seal_ != nullptr) {
    seal_->Seal(block.header, block.bytes(), checksum);
  } else {
    SealFrame(block.header, block.bytes(), checksum);
  }
}

absl::Status FramedChannel::CheckConnectable() const {
  if (!failed_.ok()) return failed_;
  if (connected_) return absl::FailedPreconditionError("channel is connected already");
  return absl::OkStatus();
}

void FramedChannel::FinishHeader(wire::FrameHeader& header) const {
  header.source_incarnation = transport_.options().incarnation;
  header.channel = peer_channel_;
}

void FramedChannel::SendCredit(const Consumption& consumption) {
  if (!failed_.ok() || !connected_) return;
  BlockPtr block = pool_->Take(0);
  wire::FrameHeader& header = block->header;
  header = {};
  header.type = wire::FrameType::kCredit;
  header.frame_number = ++last_sent_credit_;
  header.plan = consumption.bytes.load(std::memory_order_relaxed);
  header.sequence_id = consumption.frames.load(std::memory_order_relaxed);
  Seal(*block, transport_.checksum());
  if (const absl::Status sent = Send(std::move(block)); !sent.ok()) Fail(Annotate(sent, "return of credit"));
}

absl::Status FramedChannel::TakeCredit(const wire::FrameHeader& header) {
  if (header.payload_bytes != 0) return absl::DataLossError("credit carries a payload");
  ++last_arrived_credit_;
  if (!window_->SetConsumed(header.plan, header.sequence_id))
    return absl::DataLossError("credit exceeds what was sent");
  if (window_->TakeStarved()) transport_.NoteRoom();
  return absl::OkStatus();
}

void FramedChannel::Arrived(BlockPtr block) {
  if (failed_.ok()) arrived_.push_back(std::move(block));
}

bool FramedChannel::DefersPayloadCheck(const Block& block) const {
  const bool is_pinned = block.memory != nullptr && block.memory->is_pinned();
  return is_pinned && transport_.DefersPayloadCheck(block.header) && !(seal_ != nullptr && seal_->covers_payloads());
}

absl::Status FramedChannel::Check(Block& block) {
  const wire::FrameHeader& header = block.header;
  const bool from_peer = IsFromPeer(header);
  if (from_peer || !has_key()) WINNOW_RETURN_IF_ERROR(CheckFrameHeader(header));
  if (!from_peer) return absl::NotFoundError("the frame names another channel or sender");
  const bool credit = header.type == wire::FrameType::kCredit;
  const uint64_t due = (credit ? last_arrived_credit_ : last_arrived_frame_) + 1;
  if (header.frame_number != due) {
    return absl::DataLossError(
        absl::StrCat(credit ? "credit " : "frame ", header.frame_number, " arrived where ", due, " was due"));
  }
  // Of a payload that is checked later the checksum is believed.
  const bool deferred = DefersPayloadCheck(block);
  const PayloadChecksum checksum = deferred ? PayloadChecksum(header.payload_crc32c) : transport_.checksum();
  return seal_ != nullptr ? seal_->Open(header, block.bytes(), checksum)
                          : CheckFramePayload(header, block.bytes(), checksum);
}

std::optional<ReceivedFrame> FramedChannel::NextFrame() {
  while (connected_ && !arrived_.empty()) {
    BlockPtr block = std::move(arrived_.front());
    arrived_.pop_front();
    absl::Status good = Check(*block);
    if (absl::IsNotFound(good)) {
      transport_.NoteRefused(/*stray=*/true, good);
      continue;
    }
    const bool credit = block->header.type == wire::FrameType::kCredit;
    if (good.ok() && credit) good = TakeCredit(block->header);
    if (!good.ok()) {
      transport_.NoteRefused(/*stray=*/false, good);
      Fail(std::move(good));
      return std::nullopt;
    }
    if (credit) continue;
    ++last_arrived_frame_;
    received_bytes_ += block->payload_bytes;
    ++transport_.mutable_counters().frames_delivered;
    const std::span<const std::byte> payload = block->bytes();
    const wire::FrameHeader header = block->header;
    const bool is_pinned = block->memory != nullptr && block->memory->is_pinned();
    const bool deferred = DefersPayloadCheck(*block);
    ReceivedFrame frame(header, payload, block.release(), ReleaseReceived, is_pinned);
    if (deferred) frame.LeavePayloadUnchecked();
    return frame;
  }
  return std::nullopt;
}

}  // namespace winnow
