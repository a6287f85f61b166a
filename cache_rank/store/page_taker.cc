#include "cache_rank/store/page_taker.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace winnow {
namespace {

// What one thread takes at a time: some milliseconds of zeroing, in whole huge pages.
constexpr size_t kPieceBytes = size_t{32} << 20;

}  // namespace

PageTaker::PageTaker(std::byte* mapping, size_t bytes, int threads) : mapping_(mapping), bytes_(bytes) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back(&PageTaker::Run, this);
}

PageTaker::~PageTaker() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void PageTaker::Want(size_t end_bytes) {
  if (end_bytes <= asked_) return;
  asked_ = std::min((end_bytes + kPieceBytes - 1) / kPieceBytes * kPieceBytes, bytes_);
  {
    const std::lock_guard lock(mutex_);
    wanted_ = asked_;
  }
  changed_.notify_all();
}

void PageTaker::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stops_ || taken_ < wanted_; });
    if (stops_) return;
    const size_t first = taken_, count = std::min(kPieceBytes, wanted_ - first);
    taken_ += count;
    lock.unlock();
    int result;
    do {
      result = madvise(mapping_ + first, count, MADV_POPULATE_WRITE);
    } while (result != 0 && errno == EINTR);
    lock.lock();
    // An older kernel does not know the advice; where memory runs out, whoever writes there finds that out.
    if (result != 0) stops_ = true;
  }
}

}  // namespace winnow
