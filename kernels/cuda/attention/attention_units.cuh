#pragma once
#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"

namespace winnow::device {

// Hands units to thread blocks that all run at once, in turn: lists differ in length and multiprocessors in speed. The
// first unit of a block is its own number, later ones are drawn from a counter while the one before is worked on. All
// warps of a block pass the same units. Counters begin and end a launch at zero.
struct UnitBoard {
  uint64_t written[2];
  uint64_t read[2];
  uint32_t unit[2];

  __device__ void Init(uint32_t num_threads) {
    for (int i = 0; i < 2; ++i) {
      InitBarrier(SharedAddress(&written[i]), 1);
      InitBarrier(SharedAddress(&read[i]), num_threads);
    }
  }
};

class UnitTurns {
 public:
  // `draws`: this warp, one of the block, draws for all. counters: [units drawn, blocks that are done].
  __device__ UnitTurns(UnitBoard& board, uint32_t* counters, uint32_t total, bool draws)
      : board_(board), counters_(counters), total_(total), draws_(draws && threadIdx.x % 32 == 0), unit_(blockIdx.x) {}
  // To be called once before Next, and behind WaitForInputs: the kernel before uses the counters, too.
  __device__ void Start() { Draw(); }
  __device__ bool HasUnit() const { return unit_ < total_; }
  __device__ uint32_t unit() const { return unit_; }

  __device__ void Next() {
    if (gridDim.x >= total_) {  // one each
      unit_ = total_;
      return;
    }
    const uint32_t slot = turn_ % 2, phase = turn_ / 2 % 2;
    ++turn_;
    if (draws_) {
      WaitForPhase(SharedAddress(&board_.read[slot]), phase ^ 1);
      board_.unit[slot] = gridDim.x + drawn_;
      Arrive(SharedAddress(&board_.written[slot]));
    }
    __syncwarp();
    WaitForPhase(SharedAddress(&board_.written[slot]), phase);
    unit_ = board_.unit[slot];
    Arrive(SharedAddress(&board_.read[slot]));
    if (HasUnit()) {
      Draw();
    } else if (draws_ && atomicAdd(counters_ + 1, 1) == gridDim.x - 1) {  // nobody draws any more
      counters_[0] = 0;
      counters_[1] = 0;
    }
  }

 private:
  __device__ void Draw() {
    if (draws_ && gridDim.x < total_) drawn_ = atomicAdd(counters_, 1);
  }

  UnitBoard& board_;
  uint32_t* counters_;
  uint32_t total_;
  bool draws_;
  uint32_t unit_;
  uint32_t drawn_ = 0;
  uint32_t turn_ = 0;
};

}  // namespace winnow::device
