#include "kernels/device/params/exchange.h"
#include "tools/bench/gpu/checks/cache_checks.h"
#include "tools/bench/gpu/checks/cache_fixture.h"

namespace winnow {
namespace {

constexpr int kPeers = 4;       // three of which have rows in the step
constexpr uint32_t kValue = 7;  // the step's number
constexpr size_t kRowBytes = 1040, kRows = 19, kTo = 512, kFlag = 256, kInboxBytes = 64 << 10;

// Inboxes of cache ranks and the flags that they raise.
struct Peers {
  explicit Peers(GpuContext& gpu) {
    std::vector<device::ExchangePeer> peers(device::kMaxExchangePeers);
    for (int i = 0; i < kPeers; ++i) {
      inboxes.push_back(gpu.New<std::byte>(kInboxBytes));
      delta_flags.push_back(gpu.NewZeroed<uint32_t>(2));
      aborts.push_back(gpu.NewZeroed<uint32_t>(1));
      errors.push_back(gpu.NewZeroed<uint32_t>(1));
      if (i == kIdle) continue;
      // Not side by side.
      peers[5 * i] = {.inbox = inboxes[i], .delta_flags = delta_flags[i], .abort = aborts[i], .error = errors[i]};
    }
    table = gpu.Upload(peers);
    value = gpu.Upload(std::vector<uint32_t>{kValue});
  }
  void Set(GpuContext& gpu, uint32_t* word, uint32_t to) const {
    gpu.device.CopyAsync(word, &to, sizeof(to), gpu.stream);
    gpu.Download(word, 1);
  }
  static constexpr int kIdle = 1;
  std::vector<std::byte*> inboxes;
  std::vector<uint32_t*> delta_flags, aborts, errors;
  const device::ExchangePeer* table = nullptr;
  const uint32_t* value = nullptr;
};

void CheckSentRows(GpuContext& gpu) {
  const Peers peers(gpu);
  std::vector<uint8_t> rows(kRows * kRowBytes);
  FillRandomly(gpu, rows);
  std::vector<void*> regions;
  std::vector<uint8_t> wanted[kPeers];
  for (auto& inbox : wanted) inbox.assign(kInboxBytes, 0xff);
  for (int i = 0; i < kPeers; ++i) {
    if (i != Peers::kIdle) std::copy_n(reinterpret_cast<const uint8_t*>(&kValue), sizeof(kValue), &wanted[i][kFlag]);
  }
  for (size_t row = 0; row < kRows; ++row) {
    const uint32_t peer = RandomBelow(gpu, kPeers);
    regions.push_back(peer == Peers::kIdle ? nullptr : peers.inboxes[peer]);
    if (peer != Peers::kIdle) std::copy_n(&rows[row * kRowBytes], kRowBytes, &wanted[peer][kTo + row * kRowBytes]);
  }
  uint32_t* const arrivals = gpu.NewZeroed<uint32_t>(1);
  gpu.table.step->send_rows(gpu.stream, {.from = gpu.Upload(rows),
                                         .row_bytes = kRowBytes,
                                         .num_rows = kRows,
                                         .regions = gpu.Upload(regions),
                                         .to = kTo,
                                         .peers = peers.table,
                                         .flag = kFlag,
                                         .value = peers.value,
                                         .arrivals = arrivals});
  size_t differing = 0;
  for (int i = 0; i < kPeers; ++i) {
    const std::vector<std::byte> got = gpu.Download(peers.inboxes[i], kInboxBytes);
    for (size_t at = 0; at < kInboxBytes; ++at) differing += static_cast<uint8_t>(got[at]) != wanted[i][at];
  }
  gpu.report.Check("rows to several peers: bytes of their inboxes", static_cast<double>(differing), 0);
  gpu.report.Check("rows to several peers: arrivals", gpu.Download(arrivals, 1)[0], 0);
  gpu.FreeAll();
}

// One of three is late by more than the limit, or its wait is aborted: the others' waits do not end for that.
void CheckSignalAndWait(GpuContext& gpu) {
  for (const uint32_t late : {0u, device::kWaitTimedOut, device::kWaitAborted}) {
    const Peers peers(gpu);
    for (int i = 0; i < kPeers; ++i) {
      const bool raised = i != Peers::kIdle && (i != 2 || late == 0);
      peers.Set(gpu, peers.delta_flags[i] + 1, raised ? kValue : kValue - 1);
    }
    if (late == device::kWaitAborted) peers.Set(gpu, peers.aborts[2], 1);
    gpu.table.step->signal_and_wait(gpu.stream, {.peers = peers.table,
                                                 .flag = kFlag,
                                                 .layer = 1,
                                                 .value = peers.value,
                                                 .timeout_us = late == device::kWaitTimedOut ? 2000u : 2'000'000u});
    double wrong = 0;
    for (int i = 0; i < kPeers; ++i) {
      wrong += gpu.Download(peers.errors[i], 1)[0] != (i == 2 ? late : 0);
      const auto* const flag = reinterpret_cast<const uint32_t*>(peers.inboxes[i] + kFlag);
      wrong += gpu.Download(flag, 1)[0] != (i == Peers::kIdle ? ~0u : kValue);
    }
    gpu.report.Check("flags of three peers, " + std::string(late == 0                       ? "all there"
                                                            : late == device::kWaitTimedOut ? "one late"
                                                                                            : "one aborted"),
                     wrong, 0);
    gpu.FreeAll();
  }
}

}  // namespace

void CheckPeers(GpuContext& gpu) {
  CheckSentRows(gpu);
  CheckSignalAndWait(gpu);
}

}  // namespace winnow
