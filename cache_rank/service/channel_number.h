#pragma once
#include <cstdint>

#include "winnow/v1/identity.pb.h"

namespace winnow {

// The number by which callers name a link of the cache rank `self` (ExchangeResponse.channel_id): its own number for
// the link, and behind that what tells this start of the process from another at the same address. gRPC connects again
// by itself, so that a call which was meant for the process before may come here, where the same link would be another
// caller's.
inline uint64_t ChannelNumber(const v1::Identity& self, uint32_t link_id) {
  return self.incarnation() << 32 | link_id;
}

// 0, which is no link's, where the number is not one of this process.
inline uint32_t LinkOf(const v1::Identity& self, uint64_t channel_number) {
  const auto link_id = static_cast<uint32_t>(channel_number);
  return ChannelNumber(self, link_id) == channel_number ? link_id : 0;
}

}  // namespace winnow
