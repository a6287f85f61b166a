#pragma once
#include "kernels/kernel_table.h"

namespace winnow {

void RopeAppend(Executor& executor, const RopeAppendParams& params);
void QueryNorm(const QueryNormParams& params);
void Rotate(const RotateParams& params);

}  // namespace winnow
