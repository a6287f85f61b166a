#include "cmd/role/payload_paths.h"

#include <utility>

#include "common/base/logging.h"
#include "kernels/plugin/plugin.h"
#include "transport/nccl/nccl_path.h"
#include "transport/peer/p2p_path.h"

namespace winnow {

PayloadPaths::PayloadPaths(const DeviceChoice& device) : choice_(device) {
  if (device.kind == DeviceChoice::Kind::kCpu) {
    why_no_gpu_ = absl::FailedPreconditionError("this rank has no GPU (--device=cpu)");
    return;
  }
  const absl::StatusOr<const device::DeviceTable*> table = device::LoadPlugin();
  absl::StatusOr<std::unique_ptr<device::Device>> opened =
      table.ok() ? (*table)->open_device(device.ordinal) : table.status();
  why_no_gpu_ = opened.status();
  if (!opened.ok()) return;
  table_ = *table;
  device_ = *std::move(opened);
}

void PayloadPaths::AddP2p(TransportOptions& options) const {
  PayloadPathKind kind = P2pPaths(device_.get());
  // The device lives as long as what pins by it.
  kind.make = [make = std::move(kind.make), device = device_](size_t window_bytes) { return make(window_bytes); };
  options.payload_paths.push_back(std::move(kind));
  options.on_payload_path = LogPayloadPath;
}

void PayloadPaths::AddNccl(TransportOptions& options) const {
  if (table_ != nullptr) {
    options.payload_paths.push_back(NcclPaths(*table_, {.ordinal = choice_.ordinal}));
  } else {
    options.payload_paths.push_back(
        {.name = "nccl",
         .make = [why = why_no_gpu_](size_t) -> absl::StatusOr<std::unique_ptr<PayloadPath>> { return why; }});
  }
  options.on_payload_path = LogPayloadPath;
}

void LogPayloadPath(std::string_view name, const absl::Status& why_none) {
  if (!name.empty()) {
    spdlog::info("payloads of frames travel by {}", name);
  } else {
    spdlog::info("payloads of frames travel by ucx: {}", std::string(why_none.message()));
  }
}

}  // namespace winnow
