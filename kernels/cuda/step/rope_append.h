#pragma once
#include "kernels/device/params/elementwise.h"

namespace winnow::device {

void RopeAppend(Stream stream, const RopeAppendParams& params);

}  // namespace winnow::device
