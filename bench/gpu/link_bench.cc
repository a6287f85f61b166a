// winnow-link-bench: two processes, a GPU each, and the p2p link between them. What a flag costs, how fast rows are
// pushed, how long a small delta takes from "slots assigned" to "rows usable", and that a peer which is killed in the
// middle of a step holds no GPU.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "bench/gpu/cache_fixture.h"
#include "bench/gpu/gpu_context.h"
#include "bench/gpu/link_process.h"

ABSL_FLAG(bool, kill_peer, false, "kill the sender in the middle of a step and see what the receiver does");
ABSL_FLAG(bool, watch_socket, true, "take the end of the socket as a sign of death, beside the end of the process");
ABSL_FLAG(bool, nccl, false, "use an NCCL pair instead");
ABSL_FLAG(int, sender_gib, 0, "device memory that the sender holds besides, in GiB");

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kRowBytes = 512;
constexpr uint32_t kPoolSlots = 8192, kPositions = 8192, kMaxBudget = 2048;
constexpr int kMaxLists = 64;
constexpr double kLinkBytesPerUs = 365e3;  // NVLink, measured with large pushes
constexpr size_t kSlotsBytes = size_t{kMaxLists} * kPoolSlots * kRowBytes;

// Regions in the order they are exposed. The flag is word 0 of the first.
enum ReceiverRegion { kFlags, kSlots, kIndices, kCounts };
const std::vector<size_t>& RegionBytes(LinkRole role) {
  static const std::vector<size_t> receiver = {4096, kSlotsBytes, size_t{kMaxLists} * kMaxBudget * 4, 4096};
  static const std::vector<size_t> sender = {4096};
  return role == LinkRole::kReceiver ? receiver : sender;
}

class LinkBench {
 public:
  LinkBench(LinkProcess& process, LinkEnds& ends, GpuContext& gpu) : process_(process), ends_(ends), gpu_(gpu) {
    std::vector<uint32_t> numbers(4096);
    std::iota(numbers.begin(), numbers.end(), 0u);
    numbers_ = gpu_.Upload(numbers);
  }

  void Run();
  void RunKill();
  void RunNccl();
  void RunNcclKill();

 private:
  bool is_receiver() const { return process_.role == LinkRole::kReceiver; }
  uint32_t* own_flag() const { return static_cast<uint32_t*>(ends_.exposed[kFlags]->data()); }
  uint32_t* peer_flag() const { return static_cast<uint32_t*>(ends_.link->region(kFlags)); }
  cuda::WaitParams WaitFor(uint32_t number, uint32_t timeout_us = 5'000'000) const {
    return {own_flag(), numbers_ + number, ends_.link->abort_word(), ends_.link->error_word(), timeout_us};
  }
  void Check(const absl::Status& status) {
    if (!status.ok()) gpu_.report.Fail("link", std::string(status.message()));
  }
  // Both sides replay what they captured, flags at 0 before; median time of this side.
  double ReplayUs(const std::function<void(cuda::Stream)>& enqueue, int replays);
  void FlagRoundTrip();
  void Pushes();
  void PushesSideBySide();
  void SmallDelta();
  std::unique_ptr<cuda::NcclPair> OpenNccl();
  cuda::PushParams MakePush(int num_lists, uint32_t rows_per_list, bool with_selection, int max_ctas);

  LinkProcess& process_;
  LinkEnds& ends_;
  GpuContext& gpu_;
  const uint32_t* numbers_;  // 0, 1, 2, ... on the device
};

double LinkBench::ReplayUs(const std::function<void(cuda::Stream)>& enqueue, int replays) {
  absl::StatusOr<std::unique_ptr<cuda::Graph>> graph = gpu_.device.Capture(gpu_.stream, enqueue);
  Check(graph.status());
  std::vector<double> times;
  for (int i = 0; i < replays; ++i) {
    gpu_.device.FillAsync(own_flag(), 0, 4, gpu_.stream);
    Check(gpu_.device.Synchronize(gpu_.stream));
    process_.socket.Barrier();
    const absl::StatusOr<double> us =
        gpu_.device.TimeUs(gpu_.stream, [&](cuda::Stream stream) { (*graph)->Launch(stream); });
    Check(us.status());
    Check(ends_.link->status());
    process_.socket.Barrier();
    times.push_back(us.value_or(0));
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void LinkBench::FlagRoundTrip() {
  const uint32_t rounds = ends_.one_gpu ? 5 : 20000;
  const double us = ReplayUs(
      [&](cuda::Stream stream) { gpu_.table.cache->ping(stream, peer_flag(), WaitFor(1), rounds, is_receiver()); }, 3);
  if (is_receiver()) gpu_.report.Time("flag, round trip", us / rounds, 0);
  const int layers = ends_.one_gpu ? 3 : 400;
  const double kernels_us = ReplayUs(
      [&](cuda::Stream stream) {
        for (int layer = 1; layer <= layers; ++layer) {
          if (is_receiver()) gpu_.table.cache->raise(stream, {peer_flag(), numbers_ + layer});
          gpu_.table.cache->wait(stream, WaitFor(layer));
          if (!is_receiver()) gpu_.table.cache->raise(stream, {peer_flag(), numbers_ + layer});
        }
      },
      5);
  if (is_receiver()) gpu_.report.Time("raise and wait as kernels, round trip", kernels_us / layers, 0);
}

// Rows of random blocks to random slots of the receiver, whose pages lie in order.
cuda::PushParams LinkBench::MakePush(int num_lists, uint32_t rows_per_list, bool with_selection, int max_ctas) {
  const BlockLists lists(gpu_, num_lists, kPositions);
  std::vector<uint32_t> pages(num_lists * kPoolSlots / kSlotPageTokens), missing, indices;
  std::iota(pages.begin(), pages.end(), 0u);
  const uint32_t* const device_pages = gpu_.Upload(pages);
  std::vector<cuda::PushTarget> targets;
  missing.resize(size_t{kMaxBudget} * num_lists);
  indices.resize(missing.size());
  for (int list = 0; list < num_lists; ++list) {
    targets.push_back({ends_.link->region(kSlots), device_pages + list * (kPoolSlots / kSlotPageTokens), 0});
    const auto positions = RandomPositions(gpu_, rows_per_list, kPositions);
    auto slots = RandomPositions(gpu_, rows_per_list, kPoolSlots);
    std::shuffle(slots.begin(), slots.end(), gpu_.random);
    std::copy(positions.begin(), positions.end(), missing.begin() + size_t{kMaxBudget} * list);
    std::copy(slots.begin(), slots.end(), indices.begin() + size_t{kMaxBudget} * list);
  }
  cuda::PushParams p{.lists = lists.device_lists,
                     .blocks = lists.device_blocks,
                     .row_pool = NewRandomBytes(gpu_, lists.num_rows() * kRowBytes),
                     .row_bytes = kRowBytes,
                     .targets = gpu_.Upload(targets),
                     .missing = gpu_.Upload(missing),
                     .missing_indices = gpu_.Upload(indices),
                     .missing_counts = gpu_.Upload(std::vector<uint32_t>(num_lists, rows_per_list)),
                     .num_lists = num_lists,
                     .max_budget = kMaxBudget,
                     .raise = {peer_flag(), numbers_ + 1},
                     .done_ctas = gpu_.NewZeroed<uint32_t>(1),
                     .max_ctas = max_ctas};
  if (with_selection) {
    p.pool_indices = p.missing_indices;
    p.counts = gpu_.Upload(std::vector<uint32_t>(num_lists, kMaxBudget));
    p.peer_pool_indices = static_cast<uint32_t*>(ends_.link->region(kIndices));
    p.peer_counts = static_cast<uint32_t*>(ends_.link->region(kCounts));
  }
  return p;
}

void LinkBench::Pushes() {
  struct Shape {
    const char* name;
    int num_lists;
    uint32_t rows_per_list;
    double goal_share;
  };
  for (const Shape& shape : {Shape{"push 4 MB, 8 lists", 8, 1024, 0.85},
                             {"push 4 MB, 64 lists", 64, 128, 0.85},
                             {"push 16 MB, 64 lists", 64, 512, 0},
                             {"push 32 MB, 64 lists", 64, 1024, 0.9}}) {
    for (const int max_ctas : {0, 64, 264}) {
      if (!is_receiver()) {
        const cuda::PushParams p = MakePush(shape.num_lists, shape.rows_per_list, false, max_ctas);
        const double bytes = static_cast<double>(shape.num_lists) * shape.rows_per_list * kRowBytes;
        const double us = gpu_.MedianUs(
            1, 20, [&](cuda::Stream stream, int) { gpu_.table.cache->push(stream, p); }, 9);
        gpu_.report.Time(std::string(shape.name) + ", " + std::to_string(max_ctas) + " CTAs", us,
                         bytes / kLinkBytesPerUs,
                         shape.goal_share > 0 ? bytes / kLinkBytesPerUs / shape.goal_share : 0);
        gpu_.FreeAll();
        Check(gpu_.device.Synchronize(gpu_.stream));
      }
      process_.socket.Barrier();
    }
  }
}

// Two pushes at a time on two streams, as those of two layers or batches are: one starts while the other ends.
void LinkBench::PushesSideBySide() {
  constexpr int kPushes = 200;
  for (const uint32_t rows_per_list : {128u, 1024u}) {
    if (!is_receiver()) {
      const cuda::Stream streams[2] = {gpu_.stream, gpu_.device.NewStream()};
      std::unique_ptr<cuda::Graph> graphs[2];
      for (int i = 0; i < 2; ++i) {
        cuda::PushParams p = MakePush(kMaxLists, rows_per_list, false, 132);
        p.raise.flag += i;
        auto graph = gpu_.device.Capture(streams[i], [&](cuda::Stream stream) {
          for (int push = 0; push < kPushes; ++push) gpu_.table.cache->push(stream, p);
        });
        Check(graph.status());
        graphs[i] = *std::move(graph);
      }
      double best_us = 1e9;
      for (int replay = 0; replay < 5; ++replay) {
        const Clock::time_point start = Clock::now();
        for (int i = 0; i < 2; ++i) graphs[i]->Launch(streams[i]);
        for (const cuda::Stream stream : streams) Check(gpu_.device.Synchronize(stream));
        best_us = std::min(best_us, std::chrono::duration<double, std::micro>(Clock::now() - start).count());
      }
      const double bytes = static_cast<double>(kMaxLists) * rows_per_list * kRowBytes;
      gpu_.report.Time("push " + std::to_string(static_cast<int>(bytes / 1e6)) + " MB, two at a time, each",
                       best_us / (2 * kPushes), bytes / kLinkBytesPerUs, bytes / kLinkBytesPerUs / 0.9);
      gpu_.FreeAll();
    }
    process_.socket.Barrier();
  }
}

// Per layer: the receiver asks (a flag), the sender pushes 50 rows of each of 8 lists, the selections and a flag, and
// the receiver waits for it. Against the same with a flag alone, whose half is what the asking costs.
void LinkBench::SmallDelta() {
  const int layers = ends_.one_gpu ? 3 : 400;
  double bare_us = 0;
  for (const int ctas : {-1000, 0, 264, 132, 64, 32}) {
    cuda::PushParams p;
    if (!is_receiver() && ctas > -1000) p = MakePush(8, 50, true, ctas);
    const double us = ReplayUs(
        [&](cuda::Stream stream) {
          for (int layer = 1; layer <= layers; ++layer) {
            const cuda::RaiseParams raise = {peer_flag(), numbers_ + layer};
            if (is_receiver()) gpu_.table.cache->raise(stream, raise);
            gpu_.table.cache->wait(stream, WaitFor(layer));
            if (is_receiver()) continue;
            p.raise = raise;
            if (ctas == -1000) {
              gpu_.table.cache->raise(stream, raise);
            } else {
              gpu_.table.cache->push(stream, p);
            }
          }
        },
        5);
    if (!is_receiver()) continue;
    if (ctas == -1000) {
      bare_us = us / layers;
    } else {
      gpu_.report.Time("8 x 50 rows, slots assigned to rows usable, " + std::to_string(ctas) + " CTAs",
                       us / layers - bare_us / 2, 0, 10);
    }
  }
}

void LinkBench::Run() {
  if (ends_.one_gpu) gpu_.report.Note("one GPU", "both processes use it in turns: no time means anything");
  FlagRoundTrip();
  SmallDelta();
  if (ends_.one_gpu) return;
  Pushes();
  PushesSideBySide();
}

void LinkBench::RunKill() {
  constexpr int kLayers = 40, kDoneLayers = 10;
  constexpr uint32_t kVeryLongUs = 30'000'000;  // so that it is the peer's death that ends the step
  std::unique_ptr<cuda::DeviceMemory> ballast;
  if (const int gib = absl::GetFlag(FLAGS_sender_gib); gib > 0 && !is_receiver()) {
    auto memory = gpu_.device.Allocate(static_cast<size_t>(gib) << 30);
    Check(memory.status());
    if (memory.ok()) ballast = *std::move(memory);
  }
  absl::StatusOr<std::unique_ptr<cuda::Graph>> graph = gpu_.device.Capture(gpu_.stream, [&](cuda::Stream stream) {
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

std::unique_ptr<cuda::NcclPair> LinkBench::OpenNccl() {
  const absl::StatusOr<std::string> id = is_receiver() ? gpu_.table.new_nccl_id() : std::string();
  Check(id.status());
  const std::string peers = process_.socket.Exchange(id.value_or(""));
  auto pair =
      gpu_.table.open_nccl_pair(gpu_.device, is_receiver() ? id.value_or("") : peers, is_receiver() ? 0 : 1, {});
  Check(pair.status());
  return pair.ok() ? *std::move(pair) : nullptr;
}

void LinkBench::RunNccl() {
  const std::unique_ptr<cuda::NcclPair> pair = OpenNccl();
  if (pair == nullptr) return;
  for (const size_t bytes : {size_t{4} << 10, size_t{1} << 20, size_t{4} << 20, size_t{32} << 20, size_t{256} << 20}) {
    const size_t moved = cuda::NcclBytes(bytes);
    uint8_t* const buffer = is_receiver() ? gpu_.New<uint8_t>(moved) : NewRandomBytes(gpu_, moved);
    constexpr int kOperations = 20;
    double best_us = 1e9;
    for (int replay = 0; replay < 4; ++replay) {
      process_.socket.Barrier();
      const absl::StatusOr<double> us = gpu_.device.TimeUs(gpu_.stream, [&](cuda::Stream stream) {
        for (int i = 0; i < kOperations; ++i) {
          Check(is_receiver() ? pair->Receive(stream, buffer, bytes) : pair->Send(stream, buffer, bytes));
        }
      });
      Check(us.status());
      best_us = std::min(best_us, us.value_or(1e9) / kOperations);
    }
    const std::vector<uint8_t> got = gpu_.Download(buffer, moved);
    const std::string peers = process_.socket.Exchange(std::string(got.begin(), got.end()));
    if (is_receiver()) {
      gpu_.report.Check("NCCL, " + std::to_string(bytes) + " bytes", std::string(got.begin(), got.end()) != peers, 0);
      gpu_.report.Time("NCCL, " + std::to_string(bytes) + " bytes", best_us, bytes / kLinkBytesPerUs);
    }
    gpu_.FreeAll();
  }
}

// The sender is killed while the receiver waits for what it never sends.
void LinkBench::RunNcclKill() {
  const std::unique_ptr<cuda::NcclPair> pair = OpenNccl();
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

int Main() {
  LinkProcess process = ForkSender();
  absl::StatusOr<LinkEnds> ends = OpenLink(process, RegionBytes(process.role), absl::GetFlag(FLAGS_watch_socket));
  const bool receives = process.role == LinkRole::kReceiver;
  if (!ends.ok()) {
    if (receives) std::printf("%s\n", std::string(ends.status().message()).c_str());
    return absl::IsUnavailable(ends.status()) ? 77 : 1;  // 77: skipped
  }
  GpuReport report;
  {
    GpuContext gpu(*ends->table, *ends->device, report, std::random_device()());
    report.Note(receives ? "receiver" : "sender", ends->device->info().name + " " + ends->device->info().pci_bus_id);
    LinkBench bench(process, *ends, gpu);
    const bool nccl = absl::GetFlag(FLAGS_nccl);
    if (absl::GetFlag(FLAGS_kill_peer)) {
      nccl ? bench.RunNcclKill() : bench.RunKill();
    } else {
      nccl ? bench.RunNccl() : bench.Run();
      // One after the other, the sender last: mapped memory is let go before its owner frees it.
      if (receives) process.socket.Barrier();
    }
  }
  report.PrintTable();
  std::fflush(stdout);
  if (!receives) process.socket.Barrier();
  if (!absl::GetFlag(FLAGS_kill_peer)) {
    ends->link.reset();
    process.socket.Barrier();
    if (receives) waitpid(process.child, nullptr, 0);
  }
  return report.failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("times the p2p link between two processes with a GPU each");
  absl::ParseCommandLine(argc, argv);
  return winnow::Main();
}
