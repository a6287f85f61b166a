#pragma once
#include "kernels/kernel_table.h"

// What layers do with rows beside products and attention: routing to experts, and sums of rows.

namespace winnow {

void RouteExperts(Executor& executor, const RouteParams& params);
void TakeRows(Executor& executor, const TakeRowsParams& params);
void AddScaledRows(Executor& executor, const AddScaledRowsParams& params);
void AddNormed(Executor& executor, const AddNormedParams& params);

}  // namespace winnow
