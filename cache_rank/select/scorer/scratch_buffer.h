#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace winnow {

// 64-byte aligned scratch of T that only grows, so that steady state does not allocate. Contents are lost when it
// grows.
template <typename T>
class ScratchBuffer {
 public:
  // At least `count` elements, valid until the next larger Reserve.
  T* Reserve(size_t count) {
    if (count > capacity_) {
      const size_t wanted = std::max(count, capacity_ + capacity_ / 2);
      const size_t bytes = (wanted * sizeof(T) + 63) / 64 * 64;
      data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
      if (data_ == nullptr) throw std::bad_alloc();
      capacity_ = wanted;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  size_t capacity_ = 0;
};

}  // namespace winnow
