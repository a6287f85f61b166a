#pragma once
#include "kernels/params.h"

namespace winnow {

void TopK(const TopKParams& params);

}  // namespace winnow
