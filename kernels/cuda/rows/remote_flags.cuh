#pragma once
#include <cuda_runtime.h>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/rows/flags.cuh"
#include "kernels/device/params/exchange_peer.h"

namespace winnow::device {

// What a step's kernels tell cache ranks and await of them, a lane to a cache rank: by whole warps.
class RemoteFlags {
 public:
  __device__ explicit RemoteFlags(const RemoteFlagsParams& params) : params_(params) {}
  __device__ bool exists() const { return params_.peers != nullptr; }

  __device__ void Raise() const {
    if (Lane() < kMaxExchangePeers) {
      std::byte* const inbox = params_.peers[Lane()].inbox;
      if (inbox != nullptr) StoreRelease(reinterpret_cast<uint32_t*>(inbox + params_.flag), LoadWord(params_.value));
    }
    __syncwarp();
  }

  // True when every flag has come.
  __device__ bool Await() const {
    bool came = true;
    if (Lane() < kMaxExchangePeers) {
      const ExchangePeer peer = params_.peers[Lane()];
      if (peer.inbox != nullptr) {
        came = WaitFor({.flag = peer.delta_flags + params_.layer,
                        .abort = peer.abort,
                        .error = peer.error,
                        .timeout_us = params_.timeout_us},
                       LoadWord(params_.value));
      }
    }
    return __all_sync(~0u, came);
  }

  // Of a launch whose warps all wait: one of them, in the block that runs first, looks for what ends a wait, the clock
  // and words of the host, and tells the others by `ended`, a device word of the launches' own. Looks at the clock by
  // all would take longer than what they wait for. Where flags are missing when inputs are there, that warp raises the
  // launch's own at once, and says so. The others do not rely on that block being there: of clusters any may come
  // first.
  __device__ bool AwaitForAll(uint32_t* ended) const {
    const Flag flag = OwnFlag();
    if (!flag.HasCome()) {
      WaitForInputs();
      if (!flag.HasCome()) {
        Raise();
        if (!Await() && Lane() == 0) StoreRelease(ended, Number());
        __syncwarp();
        return true;
      }
    }
    FenceSystem();
    __syncwarp();
    return false;
  }
  __device__ void AwaitWithOthers(const uint32_t* ended) const {
    const Flag flag = OwnFlag();
    const uint32_t number = Number();
    for (uint32_t poll = 0; !flag.HasCome() && !__any_sync(~0u, LoadWord(ended) == number); ++poll) {
      if (poll < kPollsForOthers) continue;
      Await();
      break;
    }
    FenceSystem();
    __syncwarp();
  }

 private:
  static constexpr uint32_t kPollsForOthers = 1 << 16;  // tens of milliseconds

  // Of this lane's cache rank.
  struct Flag {
    const uint32_t* word;
    uint32_t value;
    // By the whole warp: whether all have.
    __device__ bool HasCome() const {
      return __all_sync(~0u, word == nullptr || static_cast<int32_t>(LoadWord(word) - value) >= 0);
    }
  };
  __device__ static uint32_t Lane() { return threadIdx.x % 32; }
  __device__ Flag OwnFlag() const {
    Flag flag = {nullptr, LoadWord(params_.value)};
    if (Lane() < kMaxExchangePeers) {
      const ExchangePeer peer = params_.peers[Lane()];
      if (peer.inbox != nullptr) flag.word = peer.delta_flags + params_.layer;
    }
    return flag;
  }
  // Of the wait: never 0, and another one for all others of these launches that are near.
  __device__ uint32_t Number() const { return LoadWord(params_.value) << 12 | (params_.layer + 1); }

  const RemoteFlagsParams& params_;
};

// A part of what is sent, by threads [thread, thread + ...) of so many.
__device__ inline void SendRowsPart(const SendRowsParams& p, uint32_t thread, uint32_t threads) {
  const uint32_t words = p.row_bytes / sizeof(uint4), all = words * p.num_rows;
  for (uint32_t i = thread; i < all; i += threads) {
    void* const region = p.regions[i / words];
    if (region != nullptr) {
      reinterpret_cast<uint4*>(static_cast<char*>(region) + p.to)[i] = __ldcg(static_cast<const uint4*>(p.from) + i);
    }
  }
}

// By one thread of each of `parts` groups of threads, behind a barrier of the group: the last one raises the flags.
__device__ inline void EndSendRows(const SendRowsParams& p, uint32_t parts) {
  FenceSystem();
  if (atomicAdd(p.arrivals, 1) != parts - 1) return;
  *p.arrivals = 0;
  FenceSystem();
  const uint32_t value = LoadWord(p.value);
  for (int i = 0; i < kMaxExchangePeers; ++i) {
    std::byte* const inbox = p.peers[i].inbox;
    if (inbox != nullptr) *reinterpret_cast<volatile uint32_t*>(inbox + p.flag) = value;
  }
}

}  // namespace winnow::device
