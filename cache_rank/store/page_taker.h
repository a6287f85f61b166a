#pragma once
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

namespace winnow {

// Has the kernel give pages to an anonymous mapping before they are written to, on threads of its own. Whoever writes
// to a page first waits until the kernel has found and zeroed it, and threads that first write to one huge page at
// once zero a page each and keep one of them: prompts were stored at 3 GB/s in fresh memory where used memory took 21.
class PageTaker {
 public:
  // `mapping` outlives this object; at least one thread.
  PageTaker(std::byte* mapping, size_t bytes, int threads);
  ~PageTaker();
  PageTaker(const PageTaker&) = delete;
  PageTaker& operator=(const PageTaker&) = delete;

  // The first `end_bytes` of the mapping will be written to soon; returns at once. One thread.
  void Want(size_t end_bytes);

 private:
  void Run();

  std::byte* const mapping_;
  const size_t bytes_;
  size_t asked_ = 0;  // of the thread that calls Want

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t wanted_ = 0;  // the greatest end that was asked for
  size_t taken_ = 0;   // pages before it were taken, or are being taken
  bool stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace winnow
