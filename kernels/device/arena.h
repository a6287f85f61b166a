#pragma once
#include <cstddef>

namespace winnow::device {

// Cuts one region into arrays aligned to 256 bytes. Without a region it only counts, so that the same code says how
// much memory is needed and hands it out.
class Arena {
 public:
  static constexpr size_t kAlignment = 256;
  explicit Arena(void* region) : region_(static_cast<std::byte*>(region)) {}

  template <typename T = void>
  T* Take(size_t bytes) {
    T* const taken = region_ == nullptr ? nullptr : reinterpret_cast<T*>(region_ + used_);
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return taken;
  }
  template <typename T>
  T* TakeArray(size_t count) {
    return Take<T>(count * sizeof(T));
  }
  size_t used_bytes() const { return used_; }

 private:
  std::byte* const region_;
  size_t used_ = 0;
};

}  // namespace winnow::device
