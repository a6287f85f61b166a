#pragma once
#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

GpuSection AttentionSection();
GpuSection BesideSection();
GpuSection CacheSection();
GpuSection DeviceSelectionSection();
GpuSection ElementwiseSection();
GpuSection EngineSection();
GpuSection ExpertsSection();
GpuSection IndexerSection();
GpuSection LatentAttentionSection();
GpuSection LatentSection();
GpuSection MatmulSection();
GpuSection PageUnitsSection();
GpuSection PrefillAttentionSection();
GpuSection PrefillBesideSection();
GpuSection RowMovesSection();
GpuSection SelectionSection();
GpuSection ServeSection();
GpuSection TensorParallelSection();
GpuSection TransportSection();

}  // namespace winnow
