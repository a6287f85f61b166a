#include "kernels/device/flash_d2h.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>

#include "common/base/check.h"
#include "common/base/status.h"

namespace winnow::device {
namespace {

// A copy that is under way takes tens of microseconds, which is what a sleep would take at least. One that waits for a
// long kernel should not hold a core.
constexpr std::chrono::microseconds kYieldFor{200}, kSleepFor{50};

}  // namespace

absl::StatusOr<std::unique_ptr<FlashD2H>> FlashD2H::Create(Device& device, size_t staging_bytes, int num_threads) {
  std::unique_ptr<FlashD2H> saver(new FlashD2H(device, staging_bytes, num_threads));
  WINNOW_RETURN_IF_ERROR(saver->Allocate());
  for (int thread = 0; thread < num_threads; ++thread) {
    saver->threads_.emplace_back([saver = saver.get(), thread] { saver->RunThread(thread); });
  }
  return saver;
}

FlashD2H::FlashD2H(Device& device, size_t staging_bytes, int num_threads)
    : device_(device), staging_bytes_((staging_bytes + 63) / 64 * 64), num_threads_(num_threads) {
  WINNOW_CHECK(num_threads >= 1);
}

absl::Status FlashD2H::Allocate() {
  WINNOW_ASSIGN_OR_RETURN(pinned_, device_.AllocatePinned(kStagings * (staging_bytes_ + sizeof(uint32_t))));
  for (int i = 0; i < kStagings; ++i) *arrived(i) = 0;  // no ticket has this number before kNumbers others
  WINNOW_ASSIGN_OR_RETURN(numbers_, device_.Allocate(kNumbers * sizeof(uint32_t)));
  std::vector<uint32_t> numbers(kNumbers);
  std::iota(numbers.begin(), numbers.end(), 0u);
  const Stream stream = device_.NewStream();
  device_.CopyAsync(numbers_->data(), numbers.data(), kNumbers * sizeof(uint32_t), stream);
  return device_.Synchronize(stream);
}

FlashD2H::~FlashD2H() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::byte* FlashD2H::staging(uint64_t ticket) const {
  return static_cast<std::byte*>(pinned_->data()) + ticket % kStagings * staging_bytes_;
}
uint32_t* FlashD2H::arrived(uint64_t ticket) const {
  return reinterpret_cast<uint32_t*>(static_cast<std::byte*>(pinned_->data()) + kStagings * staging_bytes_) +
         ticket % kStagings;
}

uint64_t FlashD2H::Save(Stream stream, const void* rows, size_t row_bytes, std::span<std::byte* const> destinations) {
  const size_t bytes = row_bytes * destinations.size();
  WINNOW_CHECK(bytes <= staging_bytes_);
  std::unique_lock lock(mutex_);
  const uint64_t ticket = last_ticket_ + 1;
  changed_.wait(lock, [&] { return done_ + kStagings >= ticket; });
  Job& job = jobs_[ticket % kStagings];
  job.row_bytes = row_bytes;
  job.destinations.assign(destinations.begin(), destinations.end());
  job.scattering = num_threads_;
  if (bytes > 0) device_.CopyAsync(staging(ticket), rows, bytes, stream);
  // In the order of the stream: where the number is, the rows are.
  device_.CopyAsync(arrived(ticket), static_cast<const uint32_t*>(numbers_->data()) + ticket % kNumbers,
                    sizeof(uint32_t), stream);
  last_ticket_ = ticket;
  lock.unlock();
  changed_.notify_all();
  return ticket;
}

void FlashD2H::Await(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= ticket; });
}

void FlashD2H::RunThread(int thread) {
  for (uint64_t ticket = 1;; ++ticket) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || last_ticket_ >= ticket; });
      if (last_ticket_ < ticket) return;
    }
    if (!AwaitArrival(ticket)) return;
    Job& job = jobs_[ticket % kStagings];
    Scatter(job, staging(ticket), thread);
    const std::lock_guard lock(mutex_);
    if (--job.scattering > 0) continue;
    done_ = ticket;
    changed_.notify_all();
  }
}

bool FlashD2H::AwaitArrival(uint64_t ticket) {
  const auto begin = std::chrono::steady_clock::now();
  while (std::atomic_ref(*arrived(ticket)).load(std::memory_order_acquire) != ticket % kNumbers) {
    if (std::chrono::steady_clock::now() < begin + kYieldFor) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(kSleepFor);
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
  }
  return true;
}

// The thread's share: neighbouring rows, which often go to one block.
void FlashD2H::Scatter(const Job& job, const std::byte* staging, int thread) const {
  const size_t rows = job.destinations.size();
  for (size_t row = rows * thread / num_threads_; row < rows * (thread + 1) / num_threads_; ++row) {
    std::memcpy(job.destinations[row], staging + row * job.row_bytes, job.row_bytes);
  }
}

}  // namespace winnow::device
