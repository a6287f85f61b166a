#pragma once
#include <cstdint>

namespace winnow::device {

// What becomes of gate and up of a gated MLP: as InputTransform in kernels/params.h names them.
enum class GatedActivation : uint8_t { kSilu, kGeluTanh, kClampedSilu };

}  // namespace winnow::device
