#pragma once
#include <cstddef>
#include <utility>
#include <vector>

#include "common/base/check.h"

namespace winnow {

// A FIFO queue that keeps its memory: in steady state pushing and popping allocate nothing. Elements are reset to T()
// when popped.
template <typename T>
class RingQueue {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T& front() { return at(0); }
  // The i-th element from the front.
  T& at(size_t i) {
    WINNOW_CHECK(i < size_);
    return slots_[(head_ + i) % slots_.size()];
  }
  void push_back(T value) {
    if (size_ == slots_.size()) Grow();
    slots_[(head_ + size_) % slots_.size()] = std::move(value);
    ++size_;
  }
  void pop_front() {
    front() = T();
    head_ = (head_ + 1) % slots_.size();
    --size_;
  }

 private:
  void Grow() {
    std::vector<T> larger(slots_.empty() ? 16 : 2 * slots_.size());
    for (size_t i = 0; i < size_; ++i) larger[i] = std::move(at(i));
    slots_ = std::move(larger);
    head_ = 0;
  }

  std::vector<T> slots_;
  size_t head_ = 0;
  size_t size_ = 0;
};

}  // namespace winnow
