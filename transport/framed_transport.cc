#include "transport/framed_transport.h"

#include <algorithm>
#include <random>

#include "common/base/check.h"
#include "transport/wire/wire_check.h"

namespace winnow {

// Channel numbers start anywhere, so that frames meant for an earlier process at the same address find no channel here.
FramedTransport::FramedTransport(const TransportOptions& options, LinkFaults faults)
    : options_(options), faults_(std::move(faults)), next_channel_id_(std::random_device{}() | 1) {}

FramedTransport::~FramedTransport() {
  WINNOW_CHECK(by_id_.empty());
}  // channels go before their transport

uint32_t FramedTransport::NewChannelId() {
  while (next_channel_id_ == 0 || by_id_.contains(next_channel_id_)) ++next_channel_id_;
  return next_channel_id_++;
}

void FramedTransport::Add(FramedChannel& channel) {
  by_id_.emplace(channel.id(), &channel);
  const auto gap = std::find(channels_.begin(), channels_.end(), nullptr);
  if (gap != channels_.end()) {
    *gap = &channel;
  } else {
    channels_.push_back(&channel);
  }
}

void FramedTransport::Remove(FramedChannel& channel) {
  by_id_.erase(channel.id());
  std::replace(channels_.begin(), channels_.end(), &channel, static_cast<FramedChannel*>(nullptr));
}

FramedChannel* FramedTransport::Find(uint32_t channel) const {
  const auto found = by_id_.find(channel);
  return found == by_id_.end() ? nullptr : found->second;
}

void FramedTransport::NoteRefused(bool stray, const absl::Status& why) {
  ++(stray ? counters_.stray_frames : counters_.bad_frames);
  if (options_.on_refused_frame) options_.on_refused_frame(stray, why);
}

absl::Status FramedTransport::CheckPayload(const ReceivedFrame& frame) {
  absl::Status status = CheckFramePayload(frame.header(), frame.payload(), checksum_);
  if (!status.ok()) NoteRefused(/*stray=*/false, status);
  return status;
}

int FramedTransport::DeliverArrived() {
  int delivered = 0;
  for (size_t i = 0; i < channels_.size(); ++i) {
    // Looked up again each time: the handler may destroy the channel, or put another into its place.
    for (FramedChannel* channel = channels_[i]; channel != nullptr && channel == channels_[i];) {
      std::optional<ReceivedFrame> frame = channel->NextFrame();
      if (!frame.has_value()) break;
      ++delivered;
      if (handler_) handler_(*channel, *std::move(frame));
    }
  }
  return delivered;
}

}  // namespace winnow
