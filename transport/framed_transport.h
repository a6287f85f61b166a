#pragma once
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "transport/framed_channel.h"
#include "transport/link_faults.h"
#include "transport/transport.h"
#include "transport/wire/payload_checksum.h"

namespace winnow {

// The half of a transport that is the same for every implementation: its channels, handler, counters.
class FramedTransport : public Transport {
 public:
  FramedTransport(const FramedTransport&) = delete;
  FramedTransport& operator=(const FramedTransport&) = delete;
  ~FramedTransport() override;

  void SetHandler(FrameHandler handler) override { handler_ = std::move(handler); }
  TransportCounters counters() const override { return counters_; }
  DataPlaneMode data_plane_mode() const override { return options_.data_plane_mode; }
  void UseThreads(ParallelFor threads) override { checksum_ = PayloadChecksum(std::move(threads)); }
  void DeferPayloadChecks(wire::FrameType type) override { deferred_ = type; }
  absl::Status CheckPayload(const ReceivedFrame& frame) override;

  // For channels.
  void Add(FramedChannel& channel);
  void Remove(FramedChannel& channel);
  const TransportOptions& options() const { return options_; }
  const LinkFaults& faults() const { return faults_; }
  const PayloadChecksum& checksum() const { return checksum_; }
  TransportCounters& mutable_counters() { return counters_; }
  bool DefersPayloadCheck(const wire::FrameHeader& header) const {
    return deferred_ == header.type && header.phase == wire::Phase::kRefine;
  }
  // A frame is not delivered: a stray one was dropped, another one fails its channel.
  void NoteRefused(bool stray, const absl::Status& why);
  void NoteRoom() { room_ = true; }

 protected:
  FramedTransport(const TransportOptions& options, LinkFaults faults);

  uint32_t NewChannelId();
  // Null when there is no such channel.
  FramedChannel* Find(uint32_t channel) const;
  // Hands every frame that has arrived to the handler, which may destroy channels. Returns their number.
  int DeliverArrived();
  // Null entries are channels that are gone.
  const std::vector<FramedChannel*>& channels() const { return channels_; }
  // True once after a channel that had refused an Allocate has got window back.
  bool TakeRoom() { return std::exchange(room_, false); }

 private:
  const TransportOptions options_;
  const LinkFaults faults_;
  FrameHandler handler_;
  PayloadChecksum checksum_;
  std::optional<wire::FrameType> deferred_;
  TransportCounters counters_;
  std::vector<FramedChannel*> channels_;
  std::unordered_map<uint32_t, FramedChannel*> by_id_;
  uint32_t next_channel_id_;
  bool room_ = false;
};

}  // namespace winnow
