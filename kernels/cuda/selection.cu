#include <algorithm>

#include "kernels/cuda/select_list.cuh"
#include "kernels/cuda/selection.h"

namespace winnow::cuda {
namespace {

// The top-k of given values: SelectColumns' way without scores.
__global__ void __launch_bounds__(kSelectThreads, 2)
    TopKKernel(const float* values, int64_t stride, const SelectionList* lists, uint32_t max_budget, uint32_t capacity,
               uint32_t bitmap_words, uint32_t* selected, uint32_t* counts) {
  extern __shared__ __align__(16) uint8_t dynamic[];
  const SelectMemory memory = SelectMemory::Of(dynamic, capacity, bitmap_words, false);
  const uint32_t list_index = blockIdx.x / ClusterBlocks();
  const SelectionList list = lists[list_index];
  const float* row = values + stride * list_index;
  const Importance importance{.scores = row,
                              .stride = 0,
                              .lse = nullptr,
                              .scored_end = ~0u,
                              .group = 1,
                              .kind = ImportanceKind::kValues,
                              .aligned = reinterpret_cast<uint64_t>(row) % 16 == 0};
  const CutRule rule{.rows = list.budget, .mass = 0, .by_mass = false, .unit_rows = 1, .first_row = 0, .last_row = 0};
  MarkTopK(importance, list.first, list.last, list.budget, rule, memory.top_k);
  if (ClusterRank() != 0) return;
  uint32_t* out = selected + static_cast<int64_t>(list_index) * max_budget;
  const uint32_t count = VisitMarked(
      memory.top_k.bitmap, list.last > list.first ? list.last : 0, memory.top_k.control->warp_rows,
      [](uint32_t) { return 1u; }, [&](uint32_t column, uint32_t place) { out[place] = column; });
  if (threadIdx.x == 0) counts[list_index] = count;
}

// Blocks of a list's cluster: as many as fill the device about twice, none with less than least_columns to visit.
int ClusterBlocksFor(int num_lists, uint32_t max_columns, uint32_t least_columns) {
  int device = 0, multiprocessors = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (major < 9) return 1;
  int blocks = 16;
  while (blocks > 1 &&
         (blocks * num_lists > 2 * multiprocessors || static_cast<uint64_t>(blocks) * least_columns > max_columns)) {
    blocks /= 2;
  }
  return blocks;
}

template <typename... Params, typename... Args>
void LaunchClusters(Stream stream, int num_lists, int cluster_blocks, size_t shared_bytes, void (*kernel)(Params...),
                    const Args&... args) {
  if (num_lists == 0) return;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(num_lists * cluster_blocks));
  config.blockDim = dim3(kSelectThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  if (cluster_blocks > 1) {
    if (cluster_blocks > 8) cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(cluster_blocks), 1, 1};
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

constexpr size_t kMaxOperandBytes = Operand<UnitFormat::kBf16, 512>::kBytes;

uint32_t CapacityFor(uint32_t max_budget) {
  return max_budget <= 2048 ? 6144 : 3 * max_budget;
}

template <typename T>
T* Take(size_t& offset, void* scratch, size_t count) {
  T* part = reinterpret_cast<T*>(static_cast<uint8_t*>(scratch) + offset);
  offset += (count * sizeof(T) + 255) / 256 * 256;
  return part;
}

// Lays the scratch out; returns its bytes.
size_t LayOut(const SelectParams& params, bool pages_alone, SelectLaunch* launch) {
  SelectLaunch& l = *launch;
  const size_t lists = params.num_lists, group = params.group;
  l.params = params;
  l.two_stage = !pages_alone && params.candidate_pages > 0;
  l.pages_alone = pages_alone;
  l.capacity = CapacityFor(params.max_budget);
  const bool scores_pages = l.two_stage || pages_alone, scores_keys = !pages_alone;
  l.key_stride = (int64_t{params.max_keys} + 31) / 32 * 32;
  l.page_stride = scores_pages ? (params.max_keys / params.pages.page_tokens + 31) / 32 * 32 : 0;
  l.max_runs = (params.max_keys + kScoreRun - 1) / kScoreRun;
  l.max_granules = (params.max_keys + kGranule - 1) / kGranule;
  l.bitmap_words = (params.max_keys + 63) / 32;
  size_t bytes = 0;
  l.key_scores = Take<float>(bytes, params.scratch, scores_keys ? lists * group * l.key_stride : 0);
  l.page_scores = Take<float>(bytes, params.scratch, lists * group * l.page_stride);
  l.parts = Take<SoftmaxPart>(bytes, params.scratch, lists * l.max_runs * kMaxGroup);
  l.granules = Take<uint32_t>(bytes, params.scratch, l.two_stage ? lists * l.max_granules : 0);
  return bytes;
}

size_t SelectScratchBytes(const SelectParams& params) {
  SelectLaunch launch;
  return params.pages.bounds == nullptr ? LayOut(params, false, &launch)
                                        : std::max(LayOut(params, false, &launch), LayOut(params, true, &launch));
}

void LaunchSelect(Stream stream, const SelectParams& params, bool pages_alone) {
  SelectLaunch launch;
  LayOut(params, pages_alone, &launch);
  const bool by_mass = params.min_mass > 0 && !pages_alone;
  const size_t shared = SelectMemory::Bytes(launch.capacity, launch.bitmap_words, by_mass, kMaxOperandBytes);
  LaunchClusters(stream, params.num_lists, ClusterBlocksFor(params.num_lists, params.max_keys, 1024), shared,
                 SelectKernel, launch);
}

void Select(Stream stream, const SelectParams& params) {
  LaunchSelect(stream, params, false);
}
void SelectPages(Stream stream, const SelectParams& params) {
  LaunchSelect(stream, params, true);
}

void TopK(Stream stream, const float* values, int64_t stride, const SelectionList* lists, int num_lists,
          uint32_t max_keys, uint32_t max_budget, uint32_t* selected, uint32_t* counts, void*) {
  const uint32_t capacity = CapacityFor(max_budget), words = (max_keys + 63) / 32;
  LaunchClusters(stream, num_lists, ClusterBlocksFor(num_lists, max_keys, 4096),
                 SelectMemory::Bytes(capacity, words, false, 0), TopKKernel, values, stride, lists, max_budget,
                 capacity, words, selected, counts);
}

template <UnitFormat kFormat, int kDim, bool kPages>
void LaunchScore(Stream stream, const SelectParams& params, uint32_t max_columns, float* scores, int64_t stride) {
  constexpr uint32_t kColumns = kSelectWarps * kScoreRun;
  const dim3 grid((max_columns + kColumns - 1) / kColumns, params.num_lists);
  if (grid.x == 0 || grid.y == 0) return;
  ScoreKernel<kFormat, kDim, kPages><<<grid, kSelectThreads, 0, stream>>>(params, scores, stride);
}

template <UnitFormat kFormat>
void LaunchScoreOf(Stream stream, const SelectParams& params, float* scores, int64_t stride) {
  switch (params.head_dim) {
    case 64:
      return LaunchScore<kFormat, 64, false>(stream, params, params.max_keys, scores, stride);
    case 96:
      return LaunchScore<kFormat, 96, false>(stream, params, params.max_keys, scores, stride);
    case 128:
      return LaunchScore<kFormat, 128, false>(stream, params, params.max_keys, scores, stride);
    case 256:
      return LaunchScore<kFormat, 256, false>(stream, params, params.max_keys, scores, stride);
  }
}

void Score(Stream stream, const SelectParams& params, float* scores, int64_t stride) {
  params.keys.dtype == Dtype::kF8 ? LaunchScoreOf<UnitFormat::kF8>(stream, params, scores, stride)
                                  : LaunchScoreOf<UnitFormat::kBf16>(stream, params, scores, stride);
}

void ScorePages(Stream stream, const SelectParams& params, float* scores, int64_t stride) {
  constexpr UnitFormat kFormat = UnitFormat::kBf16;
  const uint32_t pages = params.max_keys / params.pages.page_tokens;
  switch (params.head_dim) {
    case 64:
      return LaunchScore<kFormat, 128, true>(stream, params, pages, scores, stride);
    case 96:
      return LaunchScore<kFormat, 192, true>(stream, params, pages, scores, stride);
    case 128:
      return LaunchScore<kFormat, 256, true>(stream, params, pages, scores, stride);
    case 256:
      return LaunchScore<kFormat, 512, true>(stream, params, pages, scores, stride);
  }
}

}  // namespace

const SelectionKernels kSelectionKernels = {.select_scratch_bytes = SelectScratchBytes,
                                            .select = Select,
                                            .select_pages = SelectPages,
                                            .top_k = TopK,
                                            .score = Score,
                                            .score_pages = ScorePages};

}  // namespace winnow::cuda
