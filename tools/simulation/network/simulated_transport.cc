#include "tools/simulation/network/simulated_transport.h"

#include <cstring>
#include <deque>

#include "transport/framed_channel.h"
#include "transport/framed_transport.h"

namespace winnow::simulation {

class SimulatedTransport final : public FramedTransport {
 public:
  SimulatedTransport(FrameNetwork* network, uint64_t endpoint, const TransportOptions& options)
      : FramedTransport(options, {}),
        network_(network),
        endpoint_(endpoint),
        process_(network->network_->runtime().running()->process) {
    network_->endpoints_[endpoint_] = this;
  }
  ~SimulatedTransport() override { network_->endpoints_.erase(endpoint_); }

  TransportCapabilities capabilities() const override { return {.name = "simulated", .crosses_processes = true}; }
  absl::StatusOr<std::unique_ptr<Channel>> NewChannel() override;
  int Progress() override;
  int Wait(std::chrono::microseconds timeout, std::chrono::microseconds) override {
    const Nanos until = runtime().now() + timeout.count() * kMicrosecond;
    while (true) {
      const int delivered = Progress();
      if (std::exchange(woken_, false) || TakeRoom() || delivered > 0) return delivered;
      if (runtime().now() >= until) return 0;
      ReturnCredits(/*idle=*/true);
      waiter_ = runtime().running();
      runtime().Block(until);
      waiter_ = nullptr;
    }
  }
  void Wake() override {
    woken_ = true;
    Nudge();
  }

  // In an event of this process.
  void Arrive(FrameNetwork::Wire wire) {
    inbox_.push_back(std::move(wire));
    Nudge();
  }

  Runtime& runtime() { return network_->network_->runtime(); }
  FrameNetwork& network() { return *network_; }
  uint64_t endpoint() const { return endpoint_; }
  Process* process() const { return process_; }

 private:
  void ReturnCredits(bool idle);
  void Nudge() {
    if (waiter_ != nullptr) runtime().Wake(waiter_);
  }

  FrameNetwork* const network_;
  const uint64_t endpoint_;
  Process* const process_;
  std::deque<FrameNetwork::Wire> inbox_;
  bool woken_ = false;
  Thread* waiter_ = nullptr;
};

class SimulatedChannel final : public FramedChannel {
 public:
  SimulatedChannel(SimulatedTransport& transport, uint32_t id)
      : FramedChannel(transport, id), transport_(transport), consumption_(std::make_shared<Consumption>()) {}
  ~SimulatedChannel() override = default;

  std::string LocalAddress() const override {
    const uint64_t words[] = {transport_.endpoint(), id(), transport_.options().incarnation};
    return std::string(reinterpret_cast<const char*>(words), sizeof(words));
  }
  absl::Status Connect(std::string_view peer_address) override {
    WINNOW_RETURN_IF_ERROR(CheckConnectable());
    uint64_t words[3];
    if (peer_address.size() != sizeof(words)) return absl::InvalidArgumentError("no address of the simulation");
    std::memcpy(words, peer_address.data(), sizeof(words));
    peer_ = words[0];
    SetPeer(static_cast<uint32_t>(words[1]), words[2]);
    return absl::OkStatus();
  }

  void Take(const FrameNetwork::Wire& wire) {
    BlockPtr block = pool_->Take(wire.payload.size());
    std::memcpy(&block->header, wire.header.data(), sizeof(wire::FrameHeader));
    std::memcpy(block->payload(), wire.payload.data(), wire.payload.size());
    block->consumption = consumption_;
    Arrived(std::move(block));
  }
  void ReturnCredit(bool idle) {
    const uint64_t frames = consumption_->frames.load(), bytes = consumption_->bytes.load();
    if (frames == returned_frames_) return;
    const bool due = bytes - returned_bytes_ >= transport_.options().window_bytes / 4;
    if (!due && !idle && ++polls_ < 64) return;
    polls_ = 0;
    returned_frames_ = frames;
    returned_bytes_ = bytes;
    SendCredit(*consumption_);
  }

 private:
  absl::Status Send(BlockPtr block) override {
    FrameNetwork::Wire wire;
    wire.header.assign(reinterpret_cast<const char*>(&block->header), sizeof(wire::FrameHeader));
    wire.payload.assign(reinterpret_cast<const char*>(block->payload()), block->payload_bytes);
    transport_.network().Send(&transport_, peer_, std::move(wire), last_arrival_);
    return absl::OkStatus();
  }
  void Disconnect() override {}

  friend class FrameNetwork;
  SimulatedTransport& transport_;
  const std::shared_ptr<Consumption> consumption_;
  uint64_t peer_ = 0;
  Nanos last_arrival_ = 0;
  uint64_t returned_frames_ = 0, returned_bytes_ = 0;
  int polls_ = 0;
};

absl::StatusOr<std::unique_ptr<Channel>> SimulatedTransport::NewChannel() {
  return std::make_unique<SimulatedChannel>(*this, NewChannelId());
}

int SimulatedTransport::Progress() {
  while (!inbox_.empty()) {
    const FrameNetwork::Wire wire = std::move(inbox_.front());
    inbox_.pop_front();
    wire::FrameHeader header;
    std::memcpy(&header, wire.header.data(), sizeof(header));
    if (FramedChannel* const channel = Find(header.channel); channel != nullptr) {
      static_cast<SimulatedChannel*>(channel)->Take(wire);
    } else {
      NoteRefused(/*stray=*/true, absl::NotFoundError("the frame names no channel of this process"));
    }
  }
  const int delivered = DeliverArrived();
  ReturnCredits(/*idle=*/false);
  return delivered;
}

void SimulatedTransport::ReturnCredits(bool idle) {
  for (FramedChannel* channel : channels()) {
    if (channel != nullptr) static_cast<SimulatedChannel*>(channel)->ReturnCredit(idle);
  }
}

std::unique_ptr<Transport> FrameNetwork::NewTransport(uint64_t incarnation) {
  TransportOptions options{.incarnation = incarnation, .window_bytes = size_t{256} << 10};
  // Links have a key where either end was told so, and are plain elsewhere: some of both in most runs.
  if (incarnation % 2 == 1) options.data_plane_mode = DataPlaneMode::kAuthenticated;
  return std::make_unique<SimulatedTransport>(this, next_endpoint_++, options);
}

void FrameNetwork::BreakSoon(const Process& from, const Process& to) {
  Runtime& runtime = network_->runtime();
  runtime.At(runtime.now() + static_cast<Nanos>(runtime.Random(2 * kSecond)),
             [this, a = from.name, b = to.name] { network_->ResetConnections(a, b); });
}

void FrameNetwork::Send(SimulatedTransport* from, uint64_t to, Wire wire, Nanos& last) {
  Runtime& runtime = network_->runtime();
  const auto found = endpoints_.find(to);
  if (found == endpoints_.end()) return;
  Process* const target = found->second->process();
  ++counts.frames;
  if (runtime.Chance(faults.drop)) {
    ++counts.dropped;
    BreakSoon(*from->process(), *target);
    return;
  }
  if (runtime.Chance(faults.corrupt)) {
    ++counts.corrupted;
    std::string& bytes = wire.payload.empty() || runtime.Chance(0.3) ? wire.header : wire.payload;
    bytes[runtime.Random(bytes.size())] ^= static_cast<char>(1 << runtime.Random(8));
    BreakSoon(*from->process(), *target);  // it may be for nobody now
  }
  Nanos when = std::max(last + 1, runtime.now() + network_->Latency());
  if (runtime.Chance(faults.late)) {
    ++counts.late;
    when += static_cast<Nanos>(runtime.Random(5 * kSecond));
  } else if (runtime.Chance(faults.reorder)) {
    ++counts.reordered;
    when = runtime.now() + static_cast<Nanos>(runtime.Random(kMillisecond));
  } else {
    last = when;
  }
  int copies = 1;
  if (runtime.Chance(faults.repeat)) {
    ++counts.repeated;
    ++copies;
  }
  for (; copies > 0; --copies) {
    const Nanos blocked = network_->BlockedUntil(*from->process(), *target);
    if (blocked > 0) last = when = std::max(when, blocked + static_cast<Nanos>(runtime.Random(100 * kMillisecond)));
    runtime.At(when, target, [this, to, wire] {
      if (const auto there = endpoints_.find(to); there != endpoints_.end()) there->second->Arrive(wire);
    });
  }
}

}  // namespace winnow::simulation
