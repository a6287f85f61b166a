#include <cstdio>
#include <cstdlib>

#include "kernels/plugin/plugin.h"
#include "tests/support/host_gpu/host_table.h"
#include "tests/transport/links.h"
#include "transport/nccl/nccl_path.h"
#include "transport/peer/p2p_path.h"

namespace winnow {
namespace {

const device::DeviceTable& Table() {
  static const absl::StatusOr<const device::DeviceTable*> plugin = device::LoadPlugin();
  return plugin.ok() ? **plugin : test::HostGpuTable();
}

// One GPU for the transports of even incarnations, another for those of odd ones, where there are two.
int OrdinalOf(uint64_t incarnation) {
  return static_cast<int>(incarnation % 2) % Table().device_count();
}

device::Device* DeviceOf(uint64_t incarnation) {
  static std::vector<device::Device*> devices(2, nullptr);  // to the process's end
  device::Device*& device = devices[OrdinalOf(incarnation)];
  if (device == nullptr) device = Table().open_device(OrdinalOf(incarnation)).value().release();
  return device;
}

}  // namespace

const std::vector<TransportUnderTest>& KindsUnderTest() {
  static const std::vector<TransportUnderTest> kinds = [] {
    // Its thread looks for a dead process for a minute, with a new socket every second (NCCL 2.28.9,
    // src/ras/rasnet.cc): descriptors that the suites would take for ours. Before there are threads; peers inherit it.
    setenv("NCCL_RAS_ENABLE", "0", /*replace=*/0);
    // Read by the section transport of winnow-gpu-check.
    if (device::LoadPlugin().ok()) std::printf("[ GPUs     ] %d\n", Table().device_count());
    std::vector<TransportUnderTest> kinds = {
        {"P2p", "posix,self", "p2p", [](uint64_t incarnation) { return P2pPaths(DeviceOf(incarnation)); }, true}};
    // NCCL gives a GPU to one side alone.
    if (Table().device_count() > 1) {
      kinds.push_back({"Nccl", "posix,self", "nccl",
                       [](uint64_t incarnation) { return NcclPaths(Table(), {.ordinal = OrdinalOf(incarnation)}); },
                       true});
    }
    return kinds;
  }();
  return kinds;
}

}  // namespace winnow
