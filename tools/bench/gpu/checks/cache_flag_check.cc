#include <atomic>

#include "tools/bench/gpu/checks/cache_checks.h"
#include "tools/bench/gpu/checks/cache_fixture.h"

namespace winnow {
namespace {

constexpr uint32_t kLong = 20'000'000;  // microseconds: a wait that should end at once and does not is then seen

struct WaitCase {
  const char* name;
  uint32_t flag, value, abort, error;
  uint32_t timeout_us;
  uint32_t error_after;
};

void CheckWaits(GpuContext& gpu) {
  const WaitCase cases[] = {
      {"a flag that is up", 7, 7, 0, 0, kLong, 0},
      {"a flag that is ahead", 9, 7, 0, 0, kLong, 0},
      {"a flag that is ahead, the numbers wrapped", 3, 0xfffffff0, 0, 0, kLong, 0},
      {"a flag that stays down", 6, 7, 0, 0, 2000, device::kWaitTimedOut},
      {"a flag from before the wrap", 0xfffffff0, 3, 0, 0, 2000, device::kWaitTimedOut},
      {"abort", 6, 7, 1, 0, kLong, device::kWaitAborted},
      {"an earlier error", 6, 7, 0, 99, kLong, 99},
      {"an earlier error before abort", 6, 7, 1, 99, kLong, 99},
  };
  for (const WaitCase& c : cases) {
    const uint32_t* const words = gpu.Upload(std::vector<uint32_t>{c.flag, c.value, c.abort});
    uint32_t* const error = gpu.Upload(std::vector<uint32_t>{c.error});
    gpu.table.cache->wait(gpu.stream, {words, words + 1, words + 2, error, c.timeout_us});
    gpu.report.Check(std::string("wait for ") + c.name, gpu.Download(error, 1)[0] != c.error_after, 0);
  }
  gpu.FreeAll();
}

// The words a host can see, and what happens while a wait is under way.
void CheckFromOutside(GpuContext& gpu) {
  auto memory = gpu.device.AllocatePinned(4096);
  WINNOW_CHECK(memory.ok());
  auto* const words = static_cast<uint32_t*>((*memory)->data());  // flag, value, abort, error
  const auto wait = [&](uint32_t timeout_us, const std::function<void()>& meanwhile) {
    gpu.table.cache->wait(gpu.stream, {words, words + 1, words + 2, words + 3, timeout_us});
    meanwhile();
    if (const absl::Status status = gpu.device.Synchronize(gpu.stream); !status.ok()) {
      gpu.report.Fail("wait", std::string(status.message()));
    }
    return std::atomic_ref(words[3]).load();
  };
  const auto set = [&](std::initializer_list<uint32_t> values) { std::copy(values.begin(), values.end(), words); };

  set({0, 1, 0, 0});
  gpu.report.Check("abort by the host while waiting",
                   wait(kLong, [&] { std::atomic_ref(words[2]).store(1); }) != device::kWaitAborted, 0);
  set({0, 1, 0, 0});
  gpu.report.Check("a flag raised by the host", wait(kLong, [&] { std::atomic_ref(words[0]).store(1); }) != 0, 0);
  set({0, 1, 0, 0});
  const device::Stream other = gpu.device.NewStream();
  gpu.report.Check("a flag raised by another stream",
                   wait(kLong,
                        [&] {
                          gpu.table.cache->raise(other, {words, words + 1});
                        }) != 0 ||
                       words[0] != 1,
                   0);
}

}  // namespace

void CheckFlags(GpuContext& gpu) {
  CheckWaits(gpu);
  CheckFromOutside(gpu);
}

}  // namespace winnow
