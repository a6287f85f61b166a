#include "transport/inproc/inproc_transport.h"

#include <sched.h>

#include <cstring>
#include <utility>

#include "transport/channel_address.h"
#include "transport/framed_channel.h"
#include "transport/framed_transport.h"
#include "transport/inproc/inproc_inbox.h"

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

class InprocChannel final : public FramedChannel {
 public:
  // `inbox`: this transport's.
  InprocChannel(FramedTransport& transport, uint32_t id, uint64_t inbox_key, const std::shared_ptr<InprocInbox>& inbox)
      : FramedChannel(transport, id), inbox_key_(inbox_key), consumption_(std::make_shared<Consumption>()) {
    // Lives in blocks under way, so it must not keep the inbox.
    consumption_->on_room = [room = room_, waiting = std::weak_ptr(inbox)] {
      room->store(true);
      if (const auto to = waiting.lock(); to != nullptr) to->Nudge();
    };
  }

  std::string LocalAddress() const override {
    ChannelAddress address{ChannelAddress::Kind::kInproc, id(), transport_.options().incarnation, /*host=*/0, {}};
    address.endpoint.assign(reinterpret_cast<const char*>(&inbox_key_), sizeof(inbox_key_));
    return address.Encode();
  }

  absl::Status Connect(std::string_view peer_address) override {
    WINNOW_RETURN_IF_ERROR(CheckConnectable());
    WINNOW_ASSIGN_OR_RETURN(const ChannelAddress address,
                            ChannelAddress::Decode(peer_address, ChannelAddress::Kind::kInproc));
    uint64_t key = 0;
    if (address.endpoint.size() != sizeof(key)) return absl::InvalidArgumentError("peer address names no inbox");
    std::memcpy(&key, address.endpoint.data(), sizeof(key));
    peer_ = InprocRegistration::Find(key);
    if (peer_ == nullptr) return absl::UnavailableError("peer is not in this process any more");
    SetPeer(address.channel, address.incarnation);
    return absl::OkStatus();
  }

  // True once after a refused Allocate, when the peer has consumed something.
  bool TakeRoom() { return room_->exchange(false); }

 private:
  absl::Status Send(BlockPtr block) override {
    block->consumption = consumption_;
    peer_->Push(std::move(block));
    return absl::OkStatus();
  }
  void Disconnect() override { peer_.reset(); }
  void UpdateWindow(bool starved) override {
    if (starved) consumption_->starved.store(true);
    // Frames first: they are counted after the bytes, so the bytes of all these frames are in.
    const uint64_t frames = consumption_->frames.load();
    window_->SetConsumed(consumption_->bytes.load(), frames);
  }

  const uint64_t inbox_key_;
  const std::shared_ptr<std::atomic<bool>> room_ = std::make_shared<std::atomic<bool>>(false);
  const std::shared_ptr<Consumption> consumption_;  // of what this channel sent
  std::shared_ptr<InprocInbox> peer_;
};

class InprocTransport final : public FramedTransport {
 public:
  InprocTransport(const TransportOptions& options, LinkFaults faults) : FramedTransport(options, std::move(faults)) {}
  ~InprocTransport() override { inbox_->Shut(); }

  TransportCapabilities capabilities() const override { return {.name = "inproc"}; }

  absl::StatusOr<std::unique_ptr<Channel>> NewChannel() override {
    return std::make_unique<InprocChannel>(*this, NewChannelId(), registration_.key(), inbox_);
  }

  int Progress() override {
    inbox_->TakeAll(taken_);
    for (BlockPtr& block : taken_) {
      if (FramedChannel* channel = Find(block->header.channel); channel != nullptr) {
        channel->Arrived(std::move(block));
      } else {
        NoteRefused(/*stray=*/true, absl::NotFoundError("the frame names no channel of this process"));
      }
    }
    taken_.clear();
    return DeliverArrived();
  }

  int Wait(std::chrono::microseconds timeout, std::chrono::microseconds spin) override {
    const Clock::time_point start = Clock::now();
    for (;;) {
      const int delivered = Progress();
      if (woken_.exchange(false) || HasRoom() || delivered > 0) return delivered;
      const Clock::time_point now = Clock::now();
      if (now - start >= timeout) return 0;
      if (now - start < spin) {
        sched_yield();
      } else {
        inbox_->Sleep(start + timeout);
      }
    }
  }

  void Wake() override {
    woken_.store(true);
    inbox_->Nudge();
  }

 private:
  bool HasRoom() {
    bool room = false;
    for (FramedChannel* channel : channels()) {
      if (channel != nullptr) room |= static_cast<InprocChannel*>(channel)->TakeRoom();
    }
    return room;
  }

  std::atomic<bool> woken_{false};
  const std::shared_ptr<InprocInbox> inbox_ = std::make_shared<InprocInbox>();
  const InprocRegistration registration_{inbox_};
  std::vector<BlockPtr> taken_;
};

}  // namespace

std::unique_ptr<Transport> NewInprocTransport(const TransportOptions& options) {
  return NewInprocTransport(options, {});
}

std::unique_ptr<Transport> NewInprocTransport(const TransportOptions& options, LinkFaults faults) {
  return std::make_unique<InprocTransport>(options, std::move(faults));
}

}  // namespace winnow
