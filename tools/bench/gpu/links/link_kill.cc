#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "tools/bench/gpu/links/link_sections.h"

namespace winnow {

void LinkBench::RunKill(int sender_gib) {
  constexpr int kLayers = 40, kDoneLayers = 10;
  constexpr uint32_t kVeryLongUs = 30'000'000;  // so that it is the peer's death that ends the step
  std::unique_ptr<device::DeviceMemory> ballast;
  if (sender_gib > 0 && !is_receiver()) {
    auto memory = gpu_.device.Allocate(static_cast<size_t>(sender_gib) << 30);
    Check(memory.status());
    if (memory.ok()) ballast = *std::move(memory);
  }
  absl::StatusOr<std::unique_ptr<device::Graph>> graph = gpu_.device.Capture(gpu_.stream, [&](device::Stream stream) {
    for (int layer = 1; layer <= kLayers; ++layer) {
      if (is_receiver()) gpu_.table.cache->raise(stream, {peer_flag(), numbers_ + layer});
      gpu_.table.cache->wait(stream, WaitFor(layer, kVeryLongUs));
      if (!is_receiver() && layer == kDoneLayers) {
        gpu_.table.cache->wait(stream, WaitFor(4000, kVeryLongUs));  // hangs here until it is killed
      }
      if (!is_receiver()) gpu_.table.cache->raise(stream, {peer_flag(), numbers_ + layer});
    }
  });
  Check(graph.status());
  process_.socket.Barrier();
  (*graph)->Launch(gpu_.stream);
  if (!is_receiver()) {
    Check(gpu_.device.Synchronize(gpu_.stream));
    return;
  }
  std::atomic<double> watched_ms{-1};
  const Clock::time_point launched = Clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const Clock::time_point killed = Clock::now();
  kill(process_.child, SIGKILL);
  const auto ms_since_kill = [&] { return std::chrono::duration<double, std::milli>(Clock::now() - killed).count(); };
  std::thread watcher([&] {
    while (ends_.link->status().ok() && ms_since_kill() < 60000)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    watched_ms = ms_since_kill();
  });
  const absl::Status status = gpu_.device.Synchronize(gpu_.stream);
  const double free_ms = ms_since_kill();
  watcher.join();
  waitpid(process_.child, nullptr, 0);
  const double reaped_ms = ms_since_kill();
  std::printf(
      "killed %.0f ms into the step; seen dead after %.2f ms, GPU free after %.2f ms, process gone after %.0f ms\n",
      std::chrono::duration<double, std::milli>(killed - launched).count(), watched_ms.load(), free_ms, reaped_ms);
  std::printf("GPU: %s\n", status.ok() ? "no error" : std::string(status.message()).c_str());
  std::printf("link: %s\n", std::string(ends_.link->status().ToString()).c_str());
  gpu_.report.Check("the GPU is free within a second of the peer's death", free_ms, 1000);
  gpu_.report.Check("the GPU has no error", !status.ok(), 0);
  gpu_.report.Check("the link says that the peer is gone", !absl::IsUnavailable(ends_.link->status()), 0);
  // The GPU goes on, also with stores to memory whose owner is gone.
  gpu_.table.cache->raise(gpu_.stream, {peer_flag(), numbers_ + 77});
  gpu_.table.cache->raise(gpu_.stream, {own_flag(), numbers_ + 78});
  gpu_.report.Check("kernels run afterwards", gpu_.Download(own_flag(), 1)[0] != 78, 0);
}

// The sender is killed while the receiver waits for what it never sends.
void LinkBench::RunNcclKill() {
  const std::unique_ptr<device::NcclPair> pair = OpenNccl();
  if (pair == nullptr) return;
  uint8_t* const buffer = gpu_.New<uint8_t>(4096);
  Check(is_receiver() ? pair->Receive(gpu_.stream, buffer, 4096) : pair->Send(gpu_.stream, buffer, 4096));
  Check(gpu_.device.Synchronize(gpu_.stream));
  process_.socket.Barrier();
  if (!is_receiver()) {
    while (true) pause();
  }
  Check(pair->Receive(gpu_.stream, buffer, 4096));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const Clock::time_point killed = Clock::now();
  kill(process_.child, SIGKILL);
  std::thread watcher([&] {
    while (ends_.link->status().ok()) std::this_thread::sleep_for(std::chrono::microseconds(100));
    pair->Abort(ends_.link->status());
  });
  const absl::Status status = gpu_.device.Synchronize(gpu_.stream);
  const double free_ms = std::chrono::duration<double, std::milli>(Clock::now() - killed).count();
  watcher.join();
  waitpid(process_.child, nullptr, 0);
  std::printf("GPU free after %.2f ms: %s; pair: %s\n", free_ms, std::string(status.ToString()).c_str(),
              std::string(pair->status().ToString()).c_str());
  gpu_.report.Check("the GPU is free within a second of the peer's death", free_ms, 1000);
  gpu_.report.Check("the pair says that the peer is gone", !absl::IsUnavailable(pair->status()), 0);
}

}  // namespace winnow
