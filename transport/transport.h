#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/parallel_for.h"
#include "common/base/status.h"
#include "transport/payload_path.h"
#include "transport/seal/protection.h"
#include "transport/wire/wire.h"

// Moves frames between processes. The contract, which tests/transport/contract_test.cc checks on every
// implementation:
//
// - Threads: a Transport, its channels, buffers and frames belong to one thread. Only Wake() may be called from others.
// - Progress: bytes move, credits return and frames arrive only inside Progress() and Wait() of the two owners.
// - Order: frames of one channel are delivered in the order of Post, each exactly once and whole, or the channel fails.
// - Bounds: a channel sends at most its window of payload that the peer has not consumed. Allocate() answers
//   RESOURCE_EXHAUSTED when the window is used up; the caller makes progress and tries again. A frame is consumed when
//   its ReceivedFrame is destroyed.
// - Integrity: magic, version, channel, frame number, size, header checksum and payload checksum (CRC32C) are checked
//   before delivery. A bad frame fails its channel with DATA_LOSS and is counted; it is never delivered. The handler
//   may take over the check of payloads (DeferPayloadChecks).
// - Protection: on a channel with a key (DecideProtection, TakeProtection) a tag is checked, too, and in place of the
//   payload's checksum where it covers the payload. What does not carry the numbers of the channel and its peer is no
//   frame of the link, whatever else it is: it is dropped and counted, and disturbs nothing.
// - Failure: a failed channel reports its status from failed(), refuses Allocate and Post with it, and delivers nothing
//   more. A dead peer need not be noticed here (UCX over shared memory does not, p2p and nccl do where they can see
//   its process): liveness comes from the control plane, which calls Close.
// - Close: local and immediate; frames that were posted may or may not arrive. Memory of the channel is released by its
//   destructor, which does not wait for the peer.

namespace winnow {

struct TransportCapabilities {
  std::string_view name;  // "inproc", "ucx"
  bool crosses_processes = false;
  bool device_memory = false;
};

// What a transport has seen since it was made, over all its channels, those that are gone included.
struct TransportCounters {
  uint64_t frames_sent = 0;
  uint64_t frames_delivered = 0;
  uint64_t bad_frames = 0;    // each has failed its channel
  uint64_t stray_frames = 0;  // dropped: for no channel here, or from another incarnation than the channel's peer
};

// Room for one outgoing frame's payload, handed out by Channel::Allocate, given back by Post or by its destructor.
class SendBuffer {
 public:
  SendBuffer() = default;
  // `release` gives the memory back when the buffer was never posted.
  SendBuffer(std::span<std::byte> payload, void* owner, void (*release)(void* owner, std::byte* payload))
      : payload_(payload), owner_(owner), release_(release) {}
  SendBuffer(SendBuffer&& other) noexcept { *this = std::move(other); }
  SendBuffer& operator=(SendBuffer&& other) noexcept {
    Reset();
    payload_ = std::exchange(other.payload_, {});
    owner_ = std::exchange(other.owner_, nullptr);
    release_ = std::exchange(other.release_, nullptr);
    checksum_ = std::exchange(other.checksum_, std::nullopt);
    return *this;
  }
  ~SendBuffer() { Reset(); }

  // 64-byte aligned, of the size that was asked for; contents unspecified.
  std::span<std::byte> payload() const { return payload_; }
  // The payload's CRC-32C, where whoever filled it knows it from what it is made of: Post does not read it once more.
  void set_checksum(uint32_t crc32c) { checksum_ = crc32c; }
  std::optional<uint32_t> checksum() const { return checksum_; }
  // For transports: what they made it with, taken out, so that the destructor does nothing.
  void* Release() {
    release_ = nullptr;
    payload_ = {};
    return std::exchange(owner_, nullptr);
  }
  void* owner() const { return owner_; }

 private:
  void Reset() {
    if (release_ != nullptr) release_(owner_, payload_.data());
    release_ = nullptr;
  }
  std::span<std::byte> payload_;
  void* owner_ = nullptr;
  void (*release_)(void*, std::byte*) = nullptr;
  std::optional<uint32_t> checksum_;
};

// A frame that has arrived and passed its checks, but perhaps that of its payload. The payload is 64-byte aligned and
// lives as long as this object; destroying it returns the sender's window.
class ReceivedFrame {
 public:
  ReceivedFrame() = default;
  ReceivedFrame(const wire::FrameHeader& header, std::span<const std::byte> payload, void* owner,
                void (*release)(void* owner, const std::byte* payload, size_t bytes), bool is_pinned = false)
      : header_(header), payload_(payload), is_pinned_(is_pinned), owner_(owner), release_(release) {}
  ReceivedFrame(ReceivedFrame&& other) noexcept { *this = std::move(other); }
  ReceivedFrame& operator=(ReceivedFrame&& other) noexcept {
    Reset();
    header_ = other.header_;
    payload_ = std::exchange(other.payload_, {});
    is_pinned_ = other.is_pinned_;
    payload_is_checked_ = other.payload_is_checked_;
    owner_ = std::exchange(other.owner_, nullptr);
    release_ = std::exchange(other.release_, nullptr);
    return *this;
  }
  ~ReceivedFrame() { Reset(); }

  const wire::FrameHeader& header() const { return header_; }
  std::span<const std::byte> payload() const { return payload_; }
  // The GPUs of this process read the payload where it lies.
  bool is_pinned() const { return is_pinned_; }
  // False: nothing that follows from the payload may leave before Transport::CheckPayload has passed it.
  bool payload_is_checked() const { return payload_is_checked_; }
  void LeavePayloadUnchecked() { payload_is_checked_ = false; }

 private:
  void Reset() {
    if (release_ != nullptr) release_(owner_, payload_.data(), payload_.size());
    release_ = nullptr;
  }
  wire::FrameHeader header_{};
  std::span<const std::byte> payload_;
  bool is_pinned_ = false;
  bool payload_is_checked_ = true;
  void* owner_ = nullptr;
  void (*release_)(void*, const std::byte*, size_t) = nullptr;
};

// One bidirectional link between two processes' transports.
class Channel {
 public:
  virtual ~Channel() = default;

  // Number that the peer must put into FrameHeader::channel; also what tells its frames apart in the handler.
  virtual uint32_t id() const = 0;
  // What the peer passes to Connect: opaque bytes, valid as long as this channel.
  virtual std::string LocalAddress() const = 0;
  // Completes the link; before it Allocate answers FAILED_PRECONDITION. INVALID_ARGUMENT for bytes that no such
  // transport made.
  virtual absl::Status Connect(std::string_view peer_address) = 0;

  // How frames of this link are protected, before the first of them: right after Connect, one end decides by what both
  // were told, the other takes what it answers. A channel that neither was asked of is plain. FAILED_PRECONDITION names
  // what the two were told, where it does not fit.
  virtual absl::StatusOr<LinkProtection> DecideProtection(DataPlaneMode caller) = 0;
  virtual absl::Status TakeProtection(const LinkProtection& decided) = 0;

  // Room for a payload of `bytes` (<= kMaxPayloadBytes, may be 0). RESOURCE_EXHAUSTED when the window is used up.
  virtual absl::StatusOr<SendBuffer> Allocate(size_t bytes) = 0;
  // The same for what may be dropped: only while at most half of the window would be under way with it, so that frames
  // that somebody waits for find room. A refusal leaves no trace.
  virtual absl::StatusOr<SendBuffer> AllocateSpare(size_t bytes) = 0;
  // The same for much that must arrive but may come late: a refusal is waited for, as one of Allocate is.
  virtual absl::StatusOr<SendBuffer> AllocateBulk(size_t bytes) = 0;
  // Sends a frame. The caller fills type, phase, flags, plan, sequence_id, attach_epoch, apply_position, layer_first,
  // prediction_layer and row_count; everything else is filled in here.
  virtual absl::Status Post(const wire::FrameHeader& header, SendBuffer buffer) = 0;

  // True while frames that were posted need this side's Progress to leave: before that it must not wait for what the
  // peer makes of them.
  virtual bool sending() const { return false; }

  // Name of the PayloadPath that payloads leave by; empty while they go with their headers.
  virtual std::string_view payload_path() const { return {}; }

  virtual absl::Status failed() const = 0;  // OK while the channel works
  virtual void Close() = 0;

  virtual uint64_t sent_bytes() const = 0;      // payload bytes posted
  virtual uint64_t received_bytes() const = 0;  // payload bytes delivered
};

class Transport {
 public:
  // Called inside Progress with each frame. It may Post, Allocate and keep the frame; it must not call Progress.
  using FrameHandler = std::function<void(Channel& channel, ReceivedFrame frame)>;

  virtual ~Transport() = default;
  virtual TransportCapabilities capabilities() const = 0;
  virtual void SetHandler(FrameHandler handler) = 0;
  // Threads of whoever uses the transport, by which checksums of long payloads are worked out from now on. They are
  // there for as long as it makes progress or posts.
  virtual void UseThreads(ParallelFor) {}
  // From now on payloads of such frames of steps are delivered unchecked where they lie in memory that GPUs read
  // (ReceivedFrame::is_pinned): a GPU may fetch them while the handler's thread has nothing better to do than to check.
  virtual void DeferPayloadChecks(wire::FrameType) {}
  // DATA_LOSS when a payload that was left unchecked is not what was sent: the channel is to be closed.
  virtual absl::Status CheckPayload(const ReceivedFrame&) { return absl::OkStatus(); }
  // A channel that is not connected yet. It must be destroyed before its transport.
  virtual absl::StatusOr<std::unique_ptr<Channel>> NewChannel() = 0;

  // Moves what can be moved without waiting; returns the number of frames delivered.
  virtual int Progress() = 0;
  // Progress until a frame was delivered, Wake was called, a channel that refused an Allocate has got window back or
  // failed, or `timeout` passed: polls for up to `spin`, yielding the core between polls, then sleeps in the kernel.
  // Returns the number of frames delivered.
  virtual int Wait(std::chrono::microseconds timeout, std::chrono::microseconds spin) = 0;
  // Ends a Wait that is under way, or the next one, at once. Any thread.
  virtual void Wake() = 0;

  virtual TransportCounters counters() const { return {}; }
  // What its channels are to do, as far as this side is asked.
  virtual DataPlaneMode data_plane_mode() const { return DataPlaneMode::kAuto; }
};

struct TransportOptions {
  uint64_t incarnation = 0;                // of this process, stamped on every frame
  size_t window_bytes = size_t{16} << 20;  // payload a channel may have under way: bounds memory on both sides
  std::string ucx_tls = {};  // UCX_TLS for this transport ("" = UCX's default), e.g. "posix,self" or "tcp,self"
  // UCX only: ways for payloads beside UCX's own. A channel takes the first of these that its peer has too and that
  // connects; frames go by UCX until it stands, and for good where there is none.
  std::vector<PayloadPathKind> payload_paths = {};
  // Told once for a channel, on its thread: which of them it takes, or why none (name empty).
  std::function<void(std::string_view name, const absl::Status& why_none)> on_payload_path = {};
  // How frames are protected, and whether what carries the keys of links is encrypted itself.
  DataPlaneMode data_plane_mode = DataPlaneMode::kAuto;
  bool keys_are_secret = false;
  // Told for a channel, on its thread: what its frames are protected by.
  std::function<void(Protection level)> on_protection = {};
  // Told of each frame that is not delivered, on the transport's thread: a stray one was dropped, another one has
  // failed its channel.
  std::function<void(bool stray, const absl::Status& why)> on_refused_frame = {};
};

// Frames within one process, between any two InprocTransports.
std::unique_ptr<Transport> NewInprocTransport(const TransportOptions& options);
// Frames over UCX: shared memory in a host, TCP or RDMA between hosts.
absl::StatusOr<std::unique_ptr<Transport>> NewUcxTransport(const TransportOptions& options);

}  // namespace winnow
