#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "transport/block_pool.h"
#include "transport/link_faults.h"
#include "transport/seal/frame_seal.h"
#include "transport/send_window.h"
#include "transport/transport.h"

namespace winnow {

class FramedTransport;

// The half of a channel that is the same for every transport: numbering, sealing, window, checks on arrival, failure.
// An implementation carries sealed blocks to the peer's Arrived.
class FramedChannel : public Channel {
 public:
  ~FramedChannel() override;
  FramedChannel(const FramedChannel&) = delete;
  FramedChannel& operator=(const FramedChannel&) = delete;

  uint32_t id() const override { return id_; }
  absl::StatusOr<SendBuffer> Allocate(size_t bytes) override;
  absl::StatusOr<SendBuffer> AllocateSpare(size_t bytes) override;
  absl::StatusOr<SendBuffer> AllocateBulk(size_t bytes) override;
  absl::Status Post(const wire::FrameHeader& header, SendBuffer buffer) override;
  absl::StatusOr<LinkProtection> DecideProtection(DataPlaneMode caller) override;
  absl::Status TakeProtection(const LinkProtection& decided) override;
  absl::Status failed() const override { return failed_; }
  void Close() override;
  uint64_t sent_bytes() const override { return window_->sent_bytes(); }
  uint64_t received_bytes() const override { return received_bytes_; }

  // A frame from the peer, not checked yet. It waits for NextFrame, and for Connect.
  void Arrived(BlockPtr block);
  // The next good frame, in order. Credit is taken here; a bad frame fails the channel.
  std::optional<ReceivedFrame> NextFrame();
  bool idle() const { return arrived_.empty() || !connected_; }

 protected:
  FramedChannel(FramedTransport& transport, uint32_t id);

  // A block for a payload to be sent.
  virtual BlockPtr NewBlock(size_t bytes) { return pool_->Take(bytes); }
  // Takes a sealed frame of this channel away. An error means that it will not arrive and fails the channel.
  virtual absl::Status Send(BlockPtr block) = 0;
  // Lets go of the link, without waiting for the peer: called once, by Close, Fail or the destructor of the
  // implementation.
  virtual void Disconnect() = 0;
  // Brings the window up to date, where that does not take a frame. `starved`: an Allocate was just refused.
  virtual void UpdateWindow(bool starved) { (void)starved; }

  // First error wins; everything later is refused with it.
  void Fail(absl::Status status);
  // After the link is up: frames carry these from now on, and arriving ones must match.
  void SetPeer(uint32_t peer_channel, uint64_t peer_incarnation, bool crosses_hosts = false);
  // Whether frames need the key of the link: then what a stranger sends must disturb nothing.
  bool has_key() const { return seal_ != nullptr; }
  // Whether the peer may have sent it: it names this channel and the peer's incarnation.
  bool IsFromPeer(const wire::FrameHeader& header) const {
    return header.channel == id_ && header.source_incarnation == peer_incarnation_;
  }
  absl::Status CheckConnectable() const;
  // Tells the peer what was consumed. For transports whose two ends share no memory.
  void SendCredit(const Consumption& consumption);
  bool connected() const { return connected_; }

  FramedTransport& transport_;
  const std::shared_ptr<SendWindow> window_;
  const std::shared_ptr<BlockPool> pool_;

 private:
  absl::Status CheckAllocate(size_t bytes) const;
  // Room in the window that is waited for.
  absl::StatusOr<SendBuffer> AllocateFrom(bool (SendWindow::*reserve)(size_t), size_t bytes, const char* used_up);
  SendBuffer TakeBlock(size_t bytes);
  // Makes the seal of this end, for all frames to come.
  absl::Status SealBy(const LinkProtection& protection, FrameSeal::End end);
  // Fills in what is left of a header, and makes the frame one that the peer takes.
  void Seal(Block& block, const PayloadChecksum& checksum);
  // Whether the block's payload is checked by whoever it is delivered to.
  bool DefersPayloadCheck(const Block& block) const;
  // OK to deliver; NOT_FOUND for a stray; DATA_LOSS. Where payloads are encrypted, decrypts the block's.
  absl::Status Check(Block& block);
  absl::Status TakeCredit(const wire::FrameHeader& header);
  void FinishHeader(wire::FrameHeader& header) const;

  const uint32_t id_;
  bool connected_ = false;
  uint32_t peer_channel_ = 0;
  uint64_t peer_incarnation_ = 0;
  bool crosses_hosts_ = false;
  std::unique_ptr<FrameSeal> seal_;  // null: plain
  absl::Status failed_;
  std::deque<BlockPtr> arrived_;
  // Frames and credits are numbered apart, so that credit may be sent at any time without disturbing the frames' order.
  uint64_t last_sent_frame_ = 0;
  uint64_t last_sent_credit_ = 0;
  uint64_t last_arrived_frame_ = 0;
  uint64_t last_arrived_credit_ = 0;
  uint64_t received_bytes_ = 0;
};

}  // namespace winnow
