#pragma once
#include "kernels/kernel_table.h"

namespace winnow {

void LatentQueries(Executor& executor, const LatentQueryParams& params);
void LatentAppend(Executor& executor, const LatentAppendParams& params);
void RotateLeading(Executor& executor, const RotateLeadingParams& params);

}  // namespace winnow
