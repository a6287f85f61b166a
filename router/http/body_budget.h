#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace winnow {

// Bytes of request bodies that a server holds, those that are still arriving included: what bounds all connections
// together, as the limit of one body cannot. Any thread.
class BodyBudget {
 public:
  explicit BodyBudget(size_t max_bytes) : max_bytes_(max_bytes) {}

  // What one body has of the budget; it goes back with this object.
  class Share {
   public:
    Share() = default;
    explicit Share(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
    Share(Share&& other) noexcept : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() { Release(); }

    // Has `bytes` from now on, which is no less than before. False, and nothing changes, when others leave too little.
    bool GrowTo(size_t bytes) {
      if (bytes <= bytes_) return true;
      if (!budget_->Take(bytes - bytes_)) return false;
      bytes_ = bytes;
      return true;
    }

    void Release() {
      if (budget_) budget_->taken_bytes_ -= std::exchange(bytes_, 0);
    }

   private:
    std::shared_ptr<BodyBudget> budget_;
    size_t bytes_ = 0;
  };

  size_t max_bytes() const { return max_bytes_; }

 private:
  bool Take(size_t bytes) {
    size_t taken = taken_bytes_;
    do {
      if (bytes > max_bytes_ - taken) return false;
    } while (!taken_bytes_.compare_exchange_weak(taken, taken + bytes));
    return true;
  }

  const size_t max_bytes_;
  std::atomic<size_t> taken_bytes_{0};  // at most max_bytes_
};

}  // namespace winnow
