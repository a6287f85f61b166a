#pragma once
#include <memory>
#include <string>

#include "common/config/device_choice.h"
#include "kernels/plugin/device_table.h"
#include "transport/transport.h"

namespace winnow {

// The ways of payloads beside UCX that a rank of this machine can offer or take.
class PayloadPaths {
 public:
  // `device`: what the rank computes on. A GPU that does not answer, or --device=cpu, leaves p2p without pinned memory
  // and no nccl.
  explicit PayloadPaths(const DeviceChoice& device);

  void AddP2p(TransportOptions& options) const;
  void AddNccl(TransportOptions& options) const;

 private:
  DeviceChoice choice_;
  const device::DeviceTable* table_ = nullptr;  // null: no GPU
  absl::Status why_no_gpu_;
  std::shared_ptr<device::Device> device_;
};

// Says in the log, channel by channel, which way payloads take.
void LogPayloadPath(std::string_view name, const absl::Status& why_none);

}  // namespace winnow
