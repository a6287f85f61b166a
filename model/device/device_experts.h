#pragma once
#include <cstdint>

#include "common/model/model_config.h"
#include "kernels/device/arena.h"
#include "kernels/plugin/device_table.h"

namespace winnow {

// The MLP of sparse layers on a GPU, with the activations that it needs between its products. Pure launches, as those
// of DeviceLayers: Route, GateUp, Down in this order. Of a row's experts the sums are taken in ascending order of the
// experts, shared ones last, so that its bits are its own.
class DeviceExperts {
 public:
  // Takes the activations of up to max_rows rows of a step or a chunk out of `arena`; nothing where no layer is sparse.
  DeviceExperts(const device::DeviceTable& table, const ModelConfig& config, int max_rows, device::Arena& arena);

  // `x` [num_rows, hidden_size] bf16, the normed residual; `positions` as in device::RouteRowsParams.
  void Route(device::Stream stream, device::ExpertRows rows, const device::ExpertMatrices& experts, const void* x,
             const uint32_t* positions, int num_rows);
  void GateUp(device::Stream stream, device::ExpertRows rows, const device::ExpertMatrices& experts, const void* x,
              int num_rows);
  // residual [num_rows, hidden_size] += what the experts give.
  void Down(device::Stream stream, device::ExpertRows rows, const device::ExpertMatrices& experts, int num_rows,
            float* residual);

  // Device memory: the experts that layers of all steps so far have touched, added up; null of a dense model.
  const uint64_t* touched() const { return routed_.touched; }

 private:
  const device::DeviceTable& table_;
  device::RoutedRows routed_;
  void* hidden_ = nullptr;  // [pairs, expert's intermediate size] bf16
  float* sums_ = nullptr;   // [pairs, hidden_size]
};

}  // namespace winnow
