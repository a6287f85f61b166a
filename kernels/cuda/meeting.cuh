#pragma once
#include <cuda_runtime.h>

#include "kernels/cuda/exchange_peer.h"
#include "kernels/cuda/flags.cuh"

namespace winnow::cuda {

// What a step's kernels tell cache ranks and await of them, a lane to a cache rank: by whole warps.
class Meeting {
 public:
  __device__ explicit Meeting(const MeetParams& params) : params_(params) {}
  __device__ bool exists() const { return params_.peers != nullptr; }

  __device__ void Raise() const {
    if (const uint32_t lane = threadIdx.x % 32; lane < kMaxExchangePeers) {
      std::byte* const inbox = params_.peers[lane].inbox;
      if (inbox != nullptr) StoreRelease(reinterpret_cast<uint32_t*>(inbox + params_.flag), LoadWord(params_.value));
    }
    __syncwarp();
  }

  __device__ void Await() const {
    if (const uint32_t lane = threadIdx.x % 32; lane < kMaxExchangePeers) {
      const ExchangePeer peer = params_.peers[lane];
      if (peer.inbox != nullptr) {
        WaitFor({.flag = peer.delta_flags + params_.layer,
                 .abort = peer.abort,
                 .error = peer.error,
                 .timeout_us = params_.timeout_us},
                LoadWord(params_.value));
      }
    }
    __syncwarp();
  }

 private:
  const MeetParams& params_;
};

}  // namespace winnow::cuda
