#include <algorithm>

#include "common/base/check.h"
#include "kernels/cuda/select/cluster_select.cuh"
#include "kernels/cuda/select/list_launch.cuh"
#include "kernels/cuda/select/select_list.cuh"
#include "kernels/cuda/select/value_top_k.cuh"
#include "kernels/device/params/selection.h"

namespace winnow::device {

// In a file of its own.
extern template void ScoreKeysOf<UnitFormat::kI8>(Stream, const ScoreLaunch&);

namespace {

// The top-k of given values.
__global__ void __launch_bounds__(kMaxSelectThreads)
    TopKKernel(const float* values, int64_t stride, const SelectionList* lists, uint32_t max_budget, uint32_t capacity,
               uint32_t* selected, uint32_t* counts) {
  extern __shared__ __align__(128) uint8_t dynamic[];
  WaitForInputs();
  LetDependentsStart();
  const SelectMemory memory = SelectMemory::Of(dynamic, capacity, false);
  const uint32_t index = blockIdx.x / ClusterBlocks();
  const SelectionList list = lists[index];
  const float* row = values + stride * index;
  const Importance<ImportanceKind::kValues> importance{.scores = row,
                                                       .stride = 0,
                                                       .lse = nullptr,
                                                       .scored_end = ~0u,
                                                       .group = 1,
                                                       .aligned = reinterpret_cast<uint64_t>(row) % 16 == 0};
  const CutRule rule{.rows = list.budget, .mass = 0, .by_mass = false, .unit_rows = 1, .first_row = 0, .last_row = 0};
  MarkTopK(importance, list.first, list.last, list.budget, rule, memory.top_k);
  if (ClusterRank() != 0) return;
  uint32_t* out = selected + static_cast<int64_t>(index) * max_budget;
  const uint32_t count =
      VisitMarked(memory.top_k.bitmap, list.last > list.first ? list.last : 0, memory.top_k.control->warp_rows,
                  [&](uint32_t column, uint32_t place) { out[place] = column; });
  if (threadIdx.x == 0) counts[index] = count;
}

// How many threads work on a list.
struct ClusterShape {
  int blocks;
  int threads;  // of a block
};

// As many blocks as find room on the device at once (some multiprocessors are left over where clusters are packed),
// none with less than kLeastColumns to visit; smaller blocks where there are more lists than multiprocessors.
ClusterShape ShapeFor(int num_lists, uint32_t max_columns) {
  constexpr uint32_t kLeastColumns = 4096;
  const int multiprocessors = DeviceAttribute(cudaDevAttrMultiProcessorCount);
  // Pairs find room on every pair of multiprocessors.
  const auto room = [&](int blocks) { return blocks == 2 ? multiprocessors : multiprocessors * 15 / 16; };
  int blocks = ComputeMajor() < 9 ? 1 : 8;
  while (blocks > 1 && (blocks * num_lists > room(blocks) || blocks * kLeastColumns > max_columns)) blocks /= 2;
  return {blocks, num_lists <= multiprocessors ? kMaxSelectThreads : kMaxSelectThreads / 2};
}

// The same where keys stay in shared memory: two blocks find room on a multiprocessor, unless all blocks do without.
// No bytes where keys do not fit.
struct KeysShape {
  ClusterShape cluster;
  size_t bytes;
};
KeysShape KeysShapeFor(int num_lists, uint32_t max_columns, bool by_mass) {
  const int multiprocessors = DeviceAttribute(cudaDevAttrMultiProcessorCount);
  KeysShape shape{ShapeFor(num_lists, max_columns), 0};
  if (ComputeMajor() < 9 || (by_mass && max_columns > kMostMassColumns)) return shape;
  for (int& blocks = shape.cluster.blocks; blocks <= 8; blocks *= 2) {
    const size_t bytes = ClusterSelectMemory::Bytes(blocks, max_columns, by_mass);
    const size_t room = blocks * num_lists <= multiprocessors ? kMostSharedBytes : (kMostSharedBytes - 2048) / 2;
    if (bytes <= room || (blocks == 8 && bytes <= kMostSharedBytes)) {
      shape.bytes = bytes;
      break;
    }
  }
  return shape;
}

uint32_t CapacityFor(uint32_t max_budget, uint32_t max_columns) {
  return max_budget > 2048 ? (3 * max_budget + 31) / 32 * 32 : max_columns > 1u << 17 ? 6144 : 5120;
}

uint32_t BitmapWords(uint32_t max_columns) {
  return (max_columns + 63) / 32;
}

template <typename T>
T* Take(size_t& offset, void* scratch, size_t count) {
  T* part = reinterpret_cast<T*>(static_cast<uint8_t*>(scratch) + offset);
  offset += (count * sizeof(T) + 255) / 256 * 256;
  return part;
}

// Scores and selection of one call, and their scratch.
struct Plan {
  ScoreLaunch keys = {}, pages = {}, groups = {};
  SelectLaunch select = {};
  size_t scratch_bytes = 0;
};

Plan PlanFor(const SelectParams& params, bool pages_alone) {
  Plan plan;
  const size_t lists = params.num_lists, group = params.group;
  const bool two_stage = !pages_alone && IsTwoStage(params), scores_pages = two_stage || pages_alone;
  const bool wants_softmax = params.aggregation == Aggregation::kSoftmaxSum ||
                             (!pages_alone && (params.captured_mass != nullptr || params.min_mass > 0));
  const int64_t key_stride = (int64_t{params.max_keys} + 31) / 32 * 32;
  const int64_t page_stride = scores_pages ? (params.max_keys / params.pages.page_tokens + 31) / 32 * 32 : 0;
  const uint32_t max_runs = pages_alone ? (params.max_keys / params.pages.page_tokens + kPageRun - 1) / kPageRun
                                        : (params.max_keys + kKeyRun - 1) / kKeyRun;
  size_t& bytes = plan.scratch_bytes;
  float* key_scores = Take<float>(bytes, params.scratch, pages_alone ? 0 : lists * group * key_stride);
  float* page_scores = Take<float>(bytes, params.scratch, lists * group * page_stride);
  SoftmaxPart* parts = Take<SoftmaxPart>(bytes, params.scratch, lists * max_runs * kMaxGroup);
  const uint32_t max_granules = two_stage ? (params.max_keys + kGranule - 1) / kGranule : 0;
  uint32_t* granules = Take<uint32_t>(bytes, params.scratch, lists * max_granules);
  uint32_t* counts = Take<uint32_t>(bytes, params.scratch, lists);
  const bool by_groups = two_stage && LeavesOutGroups(params);
  // One more than there are complete ones, as a list may end in another.
  const int64_t group_stride =
      by_groups ? (params.max_keys / (kGroupPages * params.pages.page_tokens) + 32) / 32 * 32 : 0;
  float* group_scores = Take<float>(bytes, params.scratch, lists * group * group_stride);
  uint32_t* kept_groups = Take<uint32_t>(bytes, params.scratch, lists * group_stride);
  uint32_t* group_counts = Take<uint32_t>(bytes, params.scratch, by_groups ? lists : 0);
  if (!by_groups) kept_groups = nullptr;

  if (!wants_softmax) parts = nullptr;
  plan.select = {.params = params,
                 .capacity = CapacityFor(params.max_budget, params.max_keys),
                 .bitmap_words = BitmapWords(params.max_keys),
                 .key_scores = key_scores,
                 .page_scores = page_scores,
                 .parts = parts,
                 .granules = two_stage ? granules : nullptr,
                 .granule_counts = counts,
                 .group_scores = group_scores,
                 .kept_groups = kept_groups,
                 .group_counts = group_counts,
                 .key_stride = key_stride,
                 .page_stride = page_stride,
                 .group_stride = group_stride,
                 .max_runs = max_runs,
                 .max_granules = max_granules};
  plan.keys = {.params = params,
               .chained = two_stage,
               .of_groups = false,
               .granules = {two_stage ? granules : nullptr, counts, max_granules},
               .scores = key_scores,
               .stride = key_stride,
               .parts = parts,
               .max_runs = max_runs};
  plan.pages = {.params = params,
                .chained = by_groups,
                .of_groups = false,
                .granules = {kept_groups, group_counts, group_stride},
                .scores = page_scores,
                .stride = page_stride,
                .parts = pages_alone ? parts : nullptr,
                .max_runs = max_runs};
  plan.groups = {.params = params,
                 .chained = false,
                 .of_groups = true,
                 .granules = {},
                 .scores = group_scores,
                 .stride = group_stride,
                 .parts = nullptr,
                 .max_runs = 0};
  return plan;
}

size_t SelectScratchBytes(const SelectParams& params) {
  const size_t bytes = PlanFor(params, false).scratch_bytes;
  return params.pages.bounds == nullptr ? bytes : std::max(bytes, PlanFor(params, true).scratch_bytes);
}

void ScoreKeys(Stream stream, const ScoreLaunch& launch) {
  switch (launch.params.keys.dtype) {
    case Dtype::kI8:
      return ScoreKeysOf<UnitFormat::kI8>(stream, launch);
    case Dtype::kF8:
      return ScoreKeysOf<UnitFormat::kF8>(stream, launch);
    default:
      return ScoreKeysOf<UnitFormat::kBf16>(stream, launch);
  }
}

// Of pages, or of groups.
void ScorePageBounds(Stream stream, const ScoreLaunch& launch) {
  constexpr UnitFormat kFormat = UnitFormat::kBf16;
  const uint32_t unit_rows = launch.params.pages.page_tokens * (launch.of_groups ? kGroupPages : 1);
  const uint32_t pages = (launch.of_groups ? launch.params.max_keys : MostGroupedKeys(launch.params)) / unit_rows;
  switch (launch.params.head_dim) {
    case 64:
      return LaunchScore<kFormat, 128, true>(stream, launch, pages);
    case 96:
      return LaunchScore<kFormat, 192, true>(stream, launch, pages);
    case 128:
      return LaunchScore<kFormat, 256, true>(stream, launch, pages);
    case 256:
      return LaunchScore<kFormat, 512, true>(stream, launch, pages);
  }
}

// One cluster to a list, behind the kernel that scored its columns.
void LaunchSelection(Stream stream, const SelectLaunch& launch, uint32_t max_columns, bool by_mass,
                     void (*kernel)(SelectLaunch)) {
  const int lists = launch.params.num_lists;
  const ClusterShape shape = ShapeFor(lists, max_columns);
  if (lists == 0) return;
  LaunchDependent(kernel,
                  {.grid = dim3(static_cast<unsigned>(lists * shape.blocks)),
                   .threads = static_cast<unsigned>(shape.threads),
                   .shared_bytes = SelectMemory::Bytes(launch.capacity, launch.bitmap_words, by_mass),
                   .cluster_ctas = static_cast<unsigned>(shape.blocks)},
                  stream, launch);
}

template <bool kByMass>
void LaunchClusterSelectionOf(Stream stream, const SelectLaunch& launch, const KeysShape& shape) {
  using enum ImportanceKind;
  const Aggregation aggregation = launch.params.aggregation;
  LaunchDependent(aggregation == Aggregation::kSoftmaxSum ? ClusterSelectKernel<kSoftmaxSum, kByMass>
                  : aggregation == Aggregation::kMax      ? ClusterSelectKernel<kMax, kByMass>
                                                          : ClusterSelectKernel<kMean, kByMass>,
                  {.grid = dim3(static_cast<unsigned>(launch.params.num_lists * shape.cluster.blocks)),
                   .threads = static_cast<unsigned>(shape.cluster.threads),
                   .shared_bytes = shape.bytes,
                   .cluster_ctas = static_cast<unsigned>(shape.cluster.blocks)},
                  stream, launch);
}

// False where keys do not fit: nothing is launched then.
bool LaunchClusterSelection(Stream stream, const SelectLaunch& launch) {
  const bool by_mass = launch.params.min_mass > 0;
  const KeysShape shape = KeysShapeFor(launch.params.num_lists, launch.params.max_keys, by_mass);
  if (shape.bytes == 0) return false;
  if (launch.params.num_lists == 0) return true;
  by_mass ? LaunchClusterSelectionOf<true>(stream, launch, shape)
          : LaunchClusterSelectionOf<false>(stream, launch, shape);
  return true;
}

void KeepGroups(Stream stream, const Plan& plan) {
  const SelectParams& params = plan.select.params;
  WINNOW_CHECK(params.captured_mass == nullptr);  // which wants the bounds of every page
  const auto groups = static_cast<uint32_t>(plan.select.group_stride);
  const uint32_t kept = GroupsOf(params, {.budget = params.max_budget}).kept;
  SelectLaunch narrow = plan.select;
  narrow.capacity = CapacityFor(std::min(kept, groups), groups);
  narrow.bitmap_words = BitmapWords(groups);
  ScorePageBounds(stream, plan.groups);
  LaunchSelection(stream, narrow, groups, false, KeptGroupsKernel);
}

void Select(Stream stream, const SelectParams& params) {
  const Plan plan = PlanFor(params, false);
  const bool two_stage = IsTwoStage(params);
  if (two_stage &&
      LaunchListSelection(stream, params, plan.pages.scores, plan.groups.scores, plan.keys.scores, plan.keys.stride)) {
    return;
  }
  if (two_stage) {
    WINNOW_CHECK(MostGroupedKeys(params) <= kMostMarkedKeys);
    if (LeavesOutGroups(params)) KeepGroups(stream, plan);
    const uint32_t pages = params.max_keys / params.pages.page_tokens;
    SelectLaunch narrow = plan.select;
    const uint32_t candidates = CandidateRows(params, params.max_budget) / params.pages.page_tokens + 4;
    narrow.capacity = CapacityFor(std::min(candidates, pages + 1), pages);
    narrow.bitmap_words = BitmapWords(pages + 1);
    ScorePageBounds(stream, plan.pages);
    LaunchSelection(stream, narrow, pages, false, CandidatesKernel);
  }
  ScoreKeys(stream, plan.keys);
  if (params.captured_mass == nullptr && LaunchClusterSelection(stream, plan.select)) return;
  using enum ImportanceKind;
  LaunchSelection(stream, plan.select, params.max_keys, params.min_mass > 0,
                  params.aggregation == Aggregation::kSoftmaxSum ? SelectKernel<kSoftmaxSum>
                  : params.aggregation == Aggregation::kMax      ? SelectKernel<kMax>
                                                                 : SelectKernel<kMean>);
}

void SelectPages(Stream stream, const SelectParams& params) {
  Plan plan = PlanFor(params, true);
  const uint32_t pages = params.max_keys / params.pages.page_tokens;
  plan.select.bitmap_words = BitmapWords(pages + 1);
  ScorePageBounds(stream, plan.pages);
  using enum ImportanceKind;
  LaunchSelection(stream, plan.select, pages, false,
                  params.aggregation == Aggregation::kSoftmaxSum ? SelectPagesKernel<kSoftmaxSum>
                  : params.aggregation == Aggregation::kMax      ? SelectPagesKernel<kMax>
                                                                 : SelectPagesKernel<kMean>);
}

// As many blocks to a multiprocessor as lists need, at most four; one list's two blocks on two of them where those
// would lie idle. No bytes where the candidates find no room.
ValueTopKShape ValueShapeFor(int num_lists, uint32_t max_keys, uint32_t max_budget) {
  constexpr uint32_t kSharedBytes = 228 * 1024, kReservedBytes = 1024, kLeastColumns = 8192;
  // Room for a chunk of each warp behind the best ones.
  constexpr uint32_t kLeastSlack = 1024, kMostCapacity = 8192;
  ValueTopKShape shape = {};
  if (ComputeMajor() < 9) return shape;
  const uint32_t multiprocessors = DeviceAttribute(cudaDevAttrMultiProcessorCount);
  const uint32_t lists = static_cast<uint32_t>(num_lists);
  shape.blocks = 2 * lists <= multiprocessors && max_keys >= kLeastColumns ? 2 : 1;
  shape.bitmap_words = BitmapWords(max_keys);
  const uint32_t wanted = (shape.blocks * lists + multiprocessors - 1) / multiprocessors;
  for (uint32_t resident = wanted <= 2 ? wanted : 4; resident > 0; resident /= 2) {
    shape.threads = kMaxSelectThreads / resident;
    shape.stages = resident == 4 ? 1 : 2;
    const uint32_t rings = shape.threads / 32 * shape.stages * kChunkBytes,
                   room = kSharedBytes / resident - kReservedBytes;
    const uint32_t others = ValueTopKMemory::FixedBytes() +
                            std::max<uint32_t>(rings, (shape.bitmap_words * sizeof(uint32_t) + 127) / 128 * 128);
    if (others >= room) continue;
    shape.capacity = std::min<uint32_t>((room - others) / (shape.blocks * 128) * 16, kMostCapacity);
    if (shape.capacity < max_budget + kLeastSlack) continue;
    shape.bytes = others + shape.blocks * shape.capacity * sizeof(uint64_t);
    break;
  }
  return shape;
}

void TopK(Stream stream, const float* values, int64_t stride, const SelectionList* lists, int num_lists,
          uint32_t max_keys, uint32_t max_budget, uint32_t* selected, uint32_t* counts, void*) {
  const uint32_t capacity = CapacityFor(max_budget, max_keys);
  if (num_lists == 0) return;
  const ValueTopKShape streamed = ValueShapeFor(num_lists, max_keys, max_budget);
  if (streamed.bytes > 0) {
    return LaunchDependent(ValueTopKKernel,
                           {.grid = dim3(static_cast<unsigned>(num_lists) * streamed.blocks),
                            .threads = streamed.threads,
                            .shared_bytes = streamed.bytes,
                            .cluster_ctas = streamed.blocks},
                           stream, values, stride, lists, max_budget, streamed, selected, counts);
  }
  const ClusterShape shape = ShapeFor(num_lists, max_keys);
  LaunchDependent(TopKKernel,
                  {.grid = dim3(static_cast<unsigned>(num_lists * shape.blocks)),
                   .threads = static_cast<unsigned>(shape.threads),
                   .shared_bytes = SelectMemory::Bytes(capacity, BitmapWords(max_keys), false),
                   .cluster_ctas = static_cast<unsigned>(shape.blocks)},
                  stream, values, stride, lists, max_budget, capacity, selected, counts);
}

void Score(Stream stream, const SelectParams& params, float* scores, int64_t stride) {
  ScoreKeys(stream, {.params = params,
                     .chained = false,
                     .of_groups = false,
                     .granules = {},
                     .scores = scores,
                     .stride = stride,
                     .parts = nullptr,
                     .max_runs = 0});
}

void ScorePages(Stream stream, const SelectParams& params, float* scores, int64_t stride) {
  ScorePageBounds(stream, {.params = params,
                           .chained = false,
                           .of_groups = false,
                           .granules = {},
                           .scores = scores,
                           .stride = stride,
                           .parts = nullptr,
                           .max_runs = 0});
}

}  // namespace

const SelectionKernels kSelectionKernels = {.select_scratch_bytes = SelectScratchBytes,
                                            .select = Select,
                                            .select_pages = SelectPages,
                                            .top_k = TopK,
                                            .score = Score,
                                            .score_pages = ScorePages};

}  // namespace winnow::device
