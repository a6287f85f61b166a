#pragma once
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "common/base/dtype.h"

namespace winnow {

// Zeroed memory on huge pages where the system grants them.
class HugePageMemory {
 public:
  explicit HugePageMemory(size_t bytes)
      : bytes_((bytes + kHugePage) / kHugePage * kHugePage), data_(std::aligned_alloc(kHugePage, bytes_)) {
    madvise(data_, bytes_, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes_);
  }
  ~HugePageMemory() { std::free(data_); }
  HugePageMemory(const HugePageMemory&) = delete;
  HugePageMemory& operator=(const HugePageMemory&) = delete;

  void* data() { return data_; }
  float* floats() { return static_cast<float*>(data_); }
  size_t bytes() const { return bytes_; }

  // Small normal numbers of the dtype.
  void FillRandom(Dtype dtype) {
    std::mt19937 random(1);
    for (size_t i = 0; i < bytes_ / DtypeBytes(dtype); ++i) {
      const float value = static_cast<float>(random() >> 8) * 0x1p-24f - 0.5f;
      if (dtype == Dtype::kF32) {
        floats()[i] = value;
      } else {
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        static_cast<uint16_t*>(data_)[i] = static_cast<uint16_t>(bits >> 16);
      }
    }
  }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  size_t bytes_;
  void* data_;
};

}  // namespace winnow
