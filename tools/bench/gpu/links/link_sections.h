#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "tools/bench/gpu/gpu_context.h"
#include "tools/bench/gpu/links/link_process.h"

namespace winnow {

using Clock = std::chrono::steady_clock;

inline constexpr size_t kRowBytes = 512;
inline constexpr uint32_t kPoolSlots = 8192, kPositions = 8192, kMaxBudget = 2048;
inline constexpr int kMaxLists = 64;
inline constexpr double kLinkBytesPerUs = 365e3;  // NVLink, measured with large pushes
inline constexpr size_t kSlotsBytes = size_t{kMaxLists} * kPoolSlots * kRowBytes;

// Regions in the order they are exposed. The flag is word 0 of the first.
enum ReceiverRegion { kFlags, kSlots, kIndices, kCounts };
inline const std::vector<size_t>& RegionBytes(LinkRole role) {
  static const std::vector<size_t> receiver = {4096, kSlotsBytes, size_t{kMaxLists} * kMaxBudget * 4, 4096};
  static const std::vector<size_t> sender = {4096};
  return role == LinkRole::kReceiver ? receiver : sender;
}

class LinkBench {
 public:
  LinkBench(LinkProcess& process, LinkEnds& ends, GpuContext& gpu) : process_(process), ends_(ends), gpu_(gpu) {
    std::vector<uint32_t> numbers(4096);
    std::iota(numbers.begin(), numbers.end(), 0u);
    auto memory = gpu_.device.Allocate(numbers.size() * 4);
    WINNOW_CHECK(memory.ok());
    numbers_memory_ = *std::move(memory);
    gpu_.device.CopyAsync(numbers_memory_->data(), numbers.data(), numbers.size() * 4, gpu_.stream);
    WINNOW_CHECK(gpu_.device.Synchronize(gpu_.stream).ok());
    numbers_ = static_cast<const uint32_t*>(numbers_memory_->data());
  }

  void Run();
  void RunKill(int sender_gib);
  void RunNccl();
  void RunNcclKill();

 private:
  bool is_receiver() const { return process_.role == LinkRole::kReceiver; }
  uint32_t* own_flag() const { return static_cast<uint32_t*>(ends_.exposed[kFlags]->data()); }
  uint32_t* peer_flag() const { return static_cast<uint32_t*>(ends_.link->region(kFlags)); }
  device::WaitParams WaitFor(uint32_t number, uint32_t timeout_us = 5'000'000) const {
    return {own_flag(), numbers_ + number, ends_.link->abort_word(), ends_.link->error_word(), timeout_us};
  }
  void Check(const absl::Status& status) {
    if (!status.ok()) gpu_.report.Fail("link", std::string(status.message()));
  }
  // Both sides replay what they captured, flags at 0 before; median time of this side.
  double ReplayUs(const std::function<void(device::Stream)>& enqueue, int replays);
  void CheckPush();
  void FlagRoundTrip();
  void Pushes();
  void PushesSideBySide();
  void SmallDelta();
  std::unique_ptr<device::NcclPair> OpenNccl();
  struct Push {
    device::PushParams params;
    std::vector<size_t> rows;       // of the sender's pool
    std::vector<uint32_t> slots;    // of the receiver, one for each of these
    std::vector<uint32_t> indices;  // [num_lists, kMaxBudget]
  };
  Push MakePush(int num_lists, uint32_t rows_per_list, bool with_selection, int max_ctas);

  LinkProcess& process_;
  LinkEnds& ends_;
  GpuContext& gpu_;
  std::unique_ptr<device::DeviceMemory> numbers_memory_;
  const uint32_t* numbers_;  // 0, 1, 2, ... on the device
};

}  // namespace winnow
