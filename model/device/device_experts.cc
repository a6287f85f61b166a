#include "model/device/device_experts.h"

#include "model/weights/device_weights.h"

namespace winnow {

DeviceExperts::DeviceExperts(const device::DeviceTable& table, const ModelConfig& config, int max_rows,
                             device::Arena& arena)
    : table_(table) {
  const device::ExpertMatrices shape = ExpertShapeOf(config);
  if (shape.num_experts == 0) return;
  routed_ = device::RoutedRows::Take(arena, shape, max_rows);
  const auto pairs = static_cast<size_t>(routed_.max_pairs);
  hidden_ = arena.Take(pairs * shape.intermediate_size * sizeof(uint16_t));
  sums_ = arena.TakeArray<float>(pairs * shape.hidden_size);
}

void DeviceExperts::Route(device::Stream stream, device::ExpertRows rows, const device::ExpertMatrices& experts,
                          const void* x, const uint32_t* positions, int num_rows) {
  table_.experts->route(stream, rows,
                        {.experts = experts, .x = x, .num_rows = num_rows, .positions = positions, .routed = routed_});
}

void DeviceExperts::GateUp(device::Stream stream, device::ExpertRows rows, const device::ExpertMatrices& experts,
                           const void* x, int num_rows) {
  table_.experts->gate_up(stream, rows,
                          {.experts = experts, .routed = routed_, .x = x, .num_rows = num_rows, .out = hidden_});
}

void DeviceExperts::Down(device::Stream stream, device::ExpertRows rows, const device::ExpertMatrices& experts,
                         int num_rows, float* residual) {
  table_.experts->down(stream, rows,
                       {.experts = experts, .routed = routed_, .x = hidden_, .num_rows = num_rows, .out = sums_});
  table_.experts->add(
      stream, {.experts = experts, .routed = routed_, .pairs = sums_, .num_rows = num_rows, .residual = residual});
}

}  // namespace winnow
