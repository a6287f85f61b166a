#pragma once
#include <cstdint>

#include "kernels/cuda/attention/attention_merge.cuh"
#include "kernels/cuda/attention/attention_stream.cuh"
#include "kernels/cuda/attention/attention_units.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/fence_reads.cuh"
#include "kernels/cuda/rows/remote_flags.cuh"

// Decode attention: a thread block takes units of lists, one after the other. 4 warps stream their rows through
// shared memory, in chunks of which each of the 4 others scores a quarter. Weights of the whole chunk then meet its V
// halves with these warps side by side along head_dim, so that no sums have to be exchanged. Bound by memory: while a
// chunk is worked on, the next ones are on their way, those of the next unit too.
namespace winnow::device {

// The warps that work on the rows.
template <int kHeadDim, Dtype kDtype, bool kClustered>
class DecodeBlock {
 public:
  using Shape = DecodeShape<kHeadDim, kDtype>;
  using Shared = typename Shape::Shared;
  using Work = ChunkWork<kHeadDim, kDtype>;
  using State = typename Work::State;

  __device__ DecodeBlock(const DecodeLaunch& launch, Shared& shared)
      : launch_(launch),
        params_(launch.params),
        shared_(shared),
        group_(params_.num_query_heads / params_.num_kv_heads),
        cursor_{launch.num_stages},
        merger_(launch, shared, group_) {}

  __device__ void Run(uint32_t list_index, uint32_t unit) {
    const AttentionList list = params_.lists[list_index];
    work_.queries.Load(params_.q + static_cast<size_t>(list_index) * group_ * kHeadDim, group_);
    const ListCut cut(list.count(), Shape::kChunkRows);
    const uint32_t units = cut.units(launch_.level);
    State state;
    if constexpr (kClustered) {
      if (unit < units) Attend(list.count(), cut, unit, state);
      merger_.FinishInCluster(list_index, state);
    } else {
      if (unit >= units && unit > 0) return;
      if (units > 0) Attend(list.count(), cut, unit, state);
      merger_.Finish(list_index, unit, units, state);
    }
  }

 private:
  // The unit's rows, folded as ListCut says.
  __device__ void Attend(uint32_t count, const ListCut& cut, uint32_t unit, State& result) {
    const uint32_t unit_chunks = SplitsOfUnit(launch_.level) * cut.split_chunks;
    const uint32_t begin = unit * unit_chunks, end = min(cut.chunks, begin + unit_chunks);
    work_.queries.Pack(params_.scale);
    State split;
    ListFold<State> fold(kSplit);
    uint32_t split_left = cut.split_chunks, splits_done = 0;
    for (uint32_t chunk = begin; chunk < end; ++chunk) {
      WaitForPhase(SharedAddress(&shared_.full[cursor_.stage]), cursor_.phase);
      const unsigned char* stage = shared_.stage(cursor_.stage);
      typename Shape::Exchange& exchange = shared_.exchange[turn_ ^= 1];
      work_.Score(stage, count - chunk * Shape::kChunkRows, exchange);
      Work::Synchronize();
      work_.Accumulate(exchange, SharedAddress(stage), split);
      FenceReadsForCopies();
      Arrive(SharedAddress(&shared_.empty[cursor_.stage]));
      cursor_.Next();
      if (--split_left == 0 && launch_.level != kSplit) {
        split_left = cut.split_chunks;
        fold.Take(split, splits_done++);
      }
    }
    if (launch_.level == kSplit) {
      result = split;
      return;
    }
    if (split_left < cut.split_chunks) fold.Take(split, splits_done);  // the list's last
    result = fold.Finish();
  }

  const DecodeLaunch& launch_;
  const DecodeAttentionParams& params_;
  Shared& shared_;
  int group_;
  StageCursor cursor_;
  int turn_ = 0;
  PartMerger<kHeadDim, kDtype> merger_;
  Work work_;
};

// The warps that bring the rows.
template <int kHeadDim, Dtype kDtype>
class DecodeStream {
 public:
  __device__ DecodeStream(const DecodeLaunch& launch, typename DecodeShape<kHeadDim, kDtype>::Shared& shared)
      : launch_(launch), stream_(launch.params, &launch.slots, shared, launch.num_stages) {}

  // Brings the rows of one unit. The first chunks of settled lists are read while the kernel before still runs;
  // `on_inputs` is called once, when it has ended.
  template <typename OnInputs>
  __device__ void Send(uint32_t list_index, uint32_t unit, const OnInputs& on_inputs) {
    const DecodeAttentionParams& params = launch_.params;
    if (!params.settled) Await(on_inputs);
    const AttentionList list = params.lists[list_index];
    const ListCut cut(list.count(), ChunkRows(kDtype));
    const uint32_t unit_chunks = SplitsOfUnit(launch_.level) * cut.split_chunks;
    const uint32_t begin = unit * unit_chunks, end = min(cut.chunks, begin + unit_chunks);
    if (begin < end) {
      const ListRows rows(params, list);
      rows.TouchPages();
      // The working warps read the queries when they come to this unit.
      const int group = params.num_query_heads / params.num_kv_heads;
      const int at = threadIdx.x % (kStreamWarps * 32) * 32;
      if (at < group * kHeadDim) PrefetchToL2(params.q + static_cast<size_t>(list_index) * group * kHeadDim + at);
      stream_.Send(rows, begin, end, [&](uint32_t chunk) {
        if (chunk == begin + launch_.num_stages || chunk + 1 == cut.chunks) Await(on_inputs);
      });
    }
    Await(on_inputs);
  }

 private:
  template <typename OnInputs>
  __device__ void Await(const OnInputs& on_inputs) {
    if (has_inputs_) return;
    has_inputs_ = true;
    WaitForInputs();
    on_inputs();
  }

  const DecodeLaunch& launch_;
  RowStream<kHeadDim, kDtype> stream_;
  bool has_inputs_ = false;
};

// What the launch sends, by the working warps of its first blocks, which have nothing else to do yet.
__device__ inline void SendBeside(const SendRowsParams& p, uint32_t block, uint32_t blocks) {
  constexpr uint32_t kSendingBlocks = 16, kThreads = kWorkWarps * 32;
  const uint32_t sending = min(blocks, kSendingBlocks);
  if (block >= sending) return;
  SendRowsPart(p, block * kThreads + threadIdx.x, sending * kThreads);
  __syncwarp();
  if (threadIdx.x % 32 == 0) EndSendRows(p, sending * kWorkWarps);
  __syncwarp();
}

// Grid: blocks of a cluster along x and lists along y; or so many blocks that all run at once, for all units in turn.
template <int kHeadDim, Dtype kDtype, bool kClustered>
__global__ void __launch_bounds__(kDecodeThreads, DecodeShape<kHeadDim, kDtype>::kBlocks)
    DecodeAttentionKernel(const __grid_constant__ DecodeLaunch launch) {
  using Shape = DecodeShape<kHeadDim, kDtype>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  typename Shape::Shared& shared = *reinterpret_cast<typename Shape::Shared*>(shared_bytes);
  if constexpr (kClustered) ArriveInCluster();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shape::kMaxStages; ++stage) {
      InitBarrier(SharedAddress(&shared.full[stage]), kStreamWarps * 32);
      InitBarrier(SharedAddress(&shared.empty[stage]), kWorkWarps * 32);
    }
    InitBarrier(SharedAddress(&shared.met), 1);
    shared.units.Init(kDecodeThreads);
  }
  __syncthreads();
  const uint32_t first = blockIdx.y * launch.max_units + blockIdx.x;
  if (threadIdx.x == 0) PrefetchToL2(launch.params.lists + first / launch.max_units);
  if (threadIdx.x == 32) PrefetchToL2(launch.params.pages);
  if (threadIdx.x == 64) PrefetchToL2(launch.params.selected);
  const bool streams = threadIdx.x / 32 >= kWorkWarps;
  const RemoteFlags flags(launch.params.remote_flags);
  const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x;
  const bool waits_for_all = block == 0 && threadIdx.x / 32 == kWorkWarps;
  bool tells = flags.exists() && waits_for_all;
  if (!streams) {
    if (launch.params.sends.from != nullptr) SendBeside(launch.params.sends, block, gridDim.x * gridDim.y);
    WaitForInputs();
    LetDependentsStart();
  }
  if (flags.exists()) {
    if (threadIdx.x / 32 == kWorkWarps) {
      if (waits_for_all) {
        tells = !flags.AwaitForAll(launch.wait_ended);
      } else {
        flags.AwaitWithOthers(launch.wait_ended);
      }
      if (threadIdx.x % 32 == 0) Arrive(SharedAddress(&shared.met));
    }
    WaitForPhase(SharedAddress(&shared.met), 0);
    if (streams) FenceForCopyEngine();
  }
  if constexpr (kClustered) {
    if (streams) {
      DecodeStream<kHeadDim, kDtype> stream(launch, shared);
      stream.Send(blockIdx.y, blockIdx.x, [] {});
      __syncwarp();
      WaitForCluster();
      ArriveInCluster();
      if (tells) flags.Raise();
      WaitForCluster();
    } else {
      DecodeBlock<kHeadDim, kDtype, kClustered> block(launch, shared);
      block.Run(blockIdx.y, blockIdx.x);
    }
  } else {
    UnitTurns turns(shared.units, launch.unit_counters, launch.num_lists * launch.max_units,
                    threadIdx.x / 32 == kWorkWarps);
    if (streams) {
      DecodeStream<kHeadDim, kDtype> stream(launch, shared);
      for (; turns.HasUnit(); turns.Next()) {
        stream.Send(turns.unit() / launch.max_units, turns.unit() % launch.max_units, [&] { turns.Start(); });
      }
      if (tells) flags.Raise();
    } else {
      DecodeBlock<kHeadDim, kDtype, kClustered> block(launch, shared);
      for (; turns.HasUnit(); turns.Next()) block.Run(turns.unit() / launch.max_units, turns.unit() % launch.max_units);
    }
  }
}

}  // namespace winnow::device
