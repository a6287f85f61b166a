#pragma once
#include <cstddef>
#include <cstdint>

namespace winnow::device {

// A cache rank as a step of several sees it: device memory, [kMaxExchangePeers], that is written before the step.
inline constexpr int kMaxExchangePeers = 16;
struct ExchangePeer {
  std::byte* inbox = nullptr;             // the region of its CacheInbox; null: it has no row in this step
  const uint32_t* delta_flags = nullptr;  // of its InferenceInbox
  const uint32_t* abort = nullptr;        // as those of WaitParams
  uint32_t* error = nullptr;
};

// Copies rows to the inboxes of the cache ranks that they belong to, where they lie without gaps, and raises a flag in
// each cache rank's that has a row in the step, once all have arrived.
struct SendRowsParams {
  const void* from = nullptr;  // [num_rows] row_bytes, a multiple of 16
  size_t row_bytes = 0;
  int num_rows = 0;
  void* const* regions = nullptr;       // device memory, [num_rows]: a row's ExchangePeer::inbox; null: it goes nowhere
  size_t to = 0;                        // where row 0 lies in any of them
  const ExchangePeer* peers = nullptr;  // device memory, [kMaxExchangePeers]
  size_t flag = 0;                      // where the flag lies in any of their inboxes
  const uint32_t* value = nullptr;      // device word that holds what to write
  uint32_t* arrivals = nullptr;         // device word of this launcher's own, zero before the first launch
};

// Tells all cache ranks with rows in the step that what this stream has done so far is there for them, and waits for
// what each of them has to say. A wait that ends without its flag ends alone.
struct RemoteFlagsParams {
  const ExchangePeer* peers = nullptr;  // device memory, [kMaxExchangePeers]
  size_t flag = 0;                      // raised, in any of their inboxes
  int layer = 0;                        // whose delta_flags are awaited
  const uint32_t* value = nullptr;      // device word that holds what to write, and to wait for
  uint32_t timeout_us = 1000000;
};

}  // namespace winnow::device
