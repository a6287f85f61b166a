#pragma once
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"

namespace winnow::device {

// Rows of a step on their way from the GPU to host memory (FlashD2H of SparseServe, arXiv:2509.24626): one contiguous
// copy to pinned staging, then threads of the CPU scatter the rows to where they are kept. The GPU sees a single
// transfer however many places the rows go to. Two stagings: one is scattered while the other fills.
//
// Used by the device's thread, except for Await.
class FlashD2H {
 public:
  // staging_bytes: the most that one Save moves.
  static absl::StatusOr<std::unique_ptr<FlashD2H>> Create(Device& device, size_t staging_bytes, int num_threads);
  // Every Save must have arrived or its stream must be idle.
  ~FlashD2H();
  FlashD2H(const FlashD2H&) = delete;
  FlashD2H& operator=(const FlashD2H&) = delete;

  // Enqueues the copy of rows [destinations.size(), row_bytes] (device memory); row i then goes to destinations[i].
  // `rows` may be written again by what follows on the stream. Waits while both stagings are in use. Returns a ticket.
  uint64_t Save(Stream stream, const void* rows, size_t row_bytes, std::span<std::byte* const> destinations);

  // Until all rows of this ticket, and of those before, lie at their destinations. Any thread.
  void Await(uint64_t ticket);

 private:
  struct Job {
    size_t row_bytes = 0;
    std::vector<std::byte*> destinations;
    int scattering = 0;  // threads that are not done with it
  };
  static constexpr int kStagings = 2;
  static constexpr uint32_t kNumbers = 4096;  // tickets are told by their remainder

  FlashD2H(Device& device, size_t staging_bytes, int num_threads);
  absl::Status Allocate();
  void RunThread(int thread);
  bool AwaitArrival(uint64_t ticket);  // false when this is being destroyed
  void Scatter(const Job& job, const std::byte* staging, int thread) const;
  std::byte* staging(uint64_t ticket) const;
  uint32_t* arrived(uint64_t ticket) const;

  Device& device_;
  const size_t staging_bytes_;
  const int num_threads_;
  std::unique_ptr<DeviceMemory> pinned_;   // kStagings stagings, then a word each: the ticket that has arrived in it
  std::unique_ptr<DeviceMemory> numbers_;  // 0 .. kNumbers - 1: what those words are copied from

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::array<Job, kStagings> jobs_;  // of ticket t in t % kStagings; constant while threads scatter it
  uint64_t last_ticket_ = 0;
  uint64_t done_ = 0;  // tickets up to this one are at their destinations
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace winnow::device
