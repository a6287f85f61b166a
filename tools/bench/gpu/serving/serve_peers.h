#pragma once
#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

// Decode steps from GPU to GPU (p2p) in whole clusters on two GPUs, against the same selections by frames: answers,
// captured masses, samples and forks, preemption, prompts computed elsewhere, several cache ranks, and ranks that are
// killed in the middle of a step. The parts in --serve_peers.
void CheckServedPeers(GpuContext& gpu);

// What captured masses cost a served step: where --serve_peer_tokens is not 0.
void BenchPeers(GpuContext& gpu);

}  // namespace winnow
