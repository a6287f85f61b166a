#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/kv_layout.h"
#include "tools/bench/gpu/gpu_context.h"

// Random inputs that the checks and times of the cache kernels share.
namespace winnow {

inline uint32_t RandomBelow(GpuContext& gpu, uint32_t bound) {
  return static_cast<uint32_t>(gpu.random() % bound);
}

// `count` different numbers below `bound`, ascending.
inline std::vector<uint32_t> RandomPositions(GpuContext& gpu, uint32_t count, uint32_t bound) {
  std::vector<uint32_t> positions;
  for (uint32_t position = 0; position < bound && count > 0; ++position) {
    if (RandomBelow(gpu, bound - position) >= count) continue;
    positions.push_back(position);
    --count;
  }
  return positions;
}

template <typename T>
void FillRandomly(GpuContext& gpu, std::vector<T>& values) {
  for (T& value : values) value = static_cast<T>(gpu.random());
}

// Lists of `positions_per_list` positions over blocks in random order.
struct BlockLists {
  BlockLists(GpuContext& gpu, int num_lists, uint32_t positions_per_list) {
    const uint32_t blocks_per_list = (positions_per_list + kBlockTokens - 1) / kBlockTokens;
    num_blocks = blocks_per_list * num_lists;
    blocks.resize(num_blocks);
    std::iota(blocks.begin(), blocks.end(), 0u);
    std::shuffle(blocks.begin(), blocks.end(), gpu.random);
    for (int list = 0; list < num_lists; ++list) {
      lists.push_back({.first_block = list * blocks_per_list,
                       .num_keys = positions_per_list,
                       .first = 0,
                       .last = positions_per_list,
                       .budget = 0,
                       .query = 0});
    }
    device_blocks = gpu.Upload(blocks);
    device_lists = gpu.Upload(lists);
  }
  // Row number of a position of a list in the pool of blocks.
  size_t Row(int list, uint32_t position) const {
    return static_cast<size_t>(blocks[lists[list].first_block + position / kBlockTokens]) * kBlockTokens +
           position % kBlockTokens;
  }
  size_t num_rows() const { return static_cast<size_t>(num_blocks) * kBlockTokens; }

  uint32_t num_blocks = 0;
  std::vector<uint32_t> blocks;
  std::vector<device::SelectionList> lists;
  const uint32_t* device_blocks = nullptr;
  const device::SelectionList* device_lists = nullptr;
};

// Device memory full of random bytes; a large one repeats its first 64 MiB.
inline uint8_t* NewRandomBytes(GpuContext& gpu, size_t bytes) {
  constexpr size_t kChunk = size_t{64} << 20;
  uint8_t* data = gpu.New<uint8_t>(bytes);
  std::vector<uint64_t> chunk(std::min(bytes, kChunk) / 8);
  FillRandomly(gpu, chunk);
  gpu.device.CopyAsync(data, chunk.data(), chunk.size() * 8, gpu.stream);
  for (size_t at = kChunk; at < bytes; at += kChunk) {
    gpu.device.CopyAsync(data + at, data, std::min(kChunk, bytes - at), gpu.stream);
  }
  WINNOW_CHECK(gpu.device.Synchronize(gpu.stream).ok());
  return data;
}

// Number of elements that differ.
template <typename T>
double Differences(const std::vector<T>& a, const std::vector<T>& b) {
  WINNOW_CHECK(a.size() == b.size());
  double differences = 0;
  for (size_t i = 0; i < a.size(); ++i) differences += a[i] != b[i];
  return differences;
}

}  // namespace winnow
