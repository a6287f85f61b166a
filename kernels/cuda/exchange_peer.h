#pragma once
#include <cstddef>
#include <cstdint>

namespace winnow::cuda {

// A cache rank as a step of several sees it: device memory, [kMaxExchangePeers], that is written before the step.
inline constexpr int kMaxExchangePeers = 16;
struct ExchangePeer {
  std::byte* inbox = nullptr;             // the region of its CacheInbox; null: it has no row in this step
  const uint32_t* delta_flags = nullptr;  // of its InferenceInbox
  const uint32_t* abort = nullptr;        // as those of WaitParams
  uint32_t* error = nullptr;
};

// Tells all cache ranks with rows in the step that what this stream has done so far is there for them, and waits for
// what each of them has to say. A wait that ends without its flag ends alone.
struct MeetParams {
  const ExchangePeer* peers = nullptr;  // device memory, [kMaxExchangePeers]
  size_t flag = 0;                      // raised, in any of their inboxes
  int layer = 0;                        // whose delta_flags are awaited
  const uint32_t* value = nullptr;      // device word that holds what to write, and to wait for
  uint32_t timeout_us = 1000000;
};

}  // namespace winnow::cuda
