#pragma once
#include "kernels/params/attention.h"
#include "kernels/params/matmul.h"
#include "kernels/params/rows.h"

// Kernels that only move or convert rows: the same for every instruction set.

namespace winnow {

void MergeStates(const MergeStatesParams& params);
void GatherRows(const GatherRowsParams& params);
void ScatterRows(const ScatterRowsParams& params);
void Embed(const EmbedParams& params);
void Pack(const PackParams& params);

}  // namespace winnow
