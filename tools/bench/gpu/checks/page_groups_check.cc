#include <bit>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tools/bench/gpu/checks/cache_checks.h"
#include "tools/bench/gpu/checks/selection_inputs.h"

namespace winnow {
namespace {

float Value(uint16_t bf16) {
  return std::bit_cast<float>(uint32_t{bf16} << 16);
}

// Groups of pages get the ends of their pages' bounds, as the GPU itself has these, whether rows come together or one
// by one; whatever lies behind the last complete group is left alone.
void CheckGroups(GpuContext& gpu, int head_dim, int page_tokens) {
  constexpr uint32_t kLists = 3, kRows = 1200, kTogether = 700;
  const uint32_t group_rows = kGroupPages * page_tokens, group_blocks = device::GroupBlocks(page_tokens);
  const uint32_t list_blocks = (kRows / 32 + group_blocks) / group_blocks * group_blocks;
  const uint32_t pages = 32 / page_tokens;
  const size_t features = 2 * static_cast<size_t>(head_dim), num_blocks = size_t{kLists} * list_blocks;
  std::vector<uint32_t> blocks(num_blocks);
  std::iota(blocks.begin(), blocks.end(), 0u);
  std::shuffle(blocks.begin(), blocks.end(), gpu.random);
  std::vector<device::SelectionList> lists(kLists);
  for (uint32_t i = 0; i < kLists; ++i) lists[i].first_block = i * list_blocks;
  std::normal_distribution<float> normal;
  std::vector<uint16_t> rows(num_blocks * 32 * features);
  for (uint16_t& element : rows) element = Bf16Bits(normal(gpu.random));
  device::AppendParams params{.num_lists = kLists,
                              .head_dim = head_dim,
                              .lists = gpu.Upload(lists),
                              .blocks = gpu.Upload(blocks),
                              .row_pool = gpu.Upload(rows),
                              .bounds = gpu.New<uint16_t>(num_blocks * pages * features),
                              .page_tokens = page_tokens,
                              .group_bounds = gpu.New<uint16_t>(num_blocks / group_blocks * features)};
  const auto append = [&](uint32_t first, uint32_t count) {
    params.positions = gpu.Upload(std::vector<uint32_t>(kLists, first));
    params.rows_per_list = static_cast<int>(count);
    gpu.table.cache->append(gpu.stream, params);
  };
  append(0, kTogether);
  for (uint32_t row = kTogether; row < kRows; ++row) append(row, 1);
  const auto bounds = gpu.Download(static_cast<const uint16_t*>(params.bounds), num_blocks * pages * features);
  const size_t num_groups = num_blocks / group_blocks;
  const auto of_groups = gpu.Download(static_cast<const uint16_t*>(params.group_bounds), num_groups * features);
  gpu.device.FillAsync(params.group_bounds, 0xff, num_groups * features * sizeof(uint16_t), gpu.stream);
  params.positions = gpu.Upload(std::vector<uint32_t>(kLists, 0));
  params.rows_per_list = kRows;
  gpu.table.cache->bound_groups(gpu.stream, params);
  const auto again = gpu.Download(static_cast<const uint16_t*>(params.group_bounds), num_groups * features);
  int wrong = of_groups == again ? 0 : 1;
  for (size_t g = 0; g < num_groups; ++g) {
    const uint32_t of_list = static_cast<uint32_t>(g) % (list_blocks / group_blocks);
    for (size_t d = 0; d < features; ++d) {
      uint16_t end = 0;
      for (uint32_t p = 0; p < kGroupPages; ++p) {
        const uint16_t own = bounds[(size_t{blocks[g * group_blocks + p / pages]} * pages + p % pages) * features + d];
        const bool beyond = d < features / 2 ? Value(own) > Value(end) : Value(own) < Value(end);
        if (p == 0 || beyond) end = own;
      }
      const bool is_complete = (of_list + 1) * group_rows <= kRows;
      wrong += of_groups[g * features + d] != (is_complete ? end : 0xffff);
    }
  }
  gpu.report.Check(absl::StrCat("groups of pages of ", page_tokens, ", head_dim ", head_dim), wrong, 0);
  gpu.FreeAll();
}

}  // namespace

void CheckPageGroups(GpuContext& gpu) {
  for (const int head_dim : gpu.Cases<int>({64, 96, 128, 256})) CheckGroups(gpu, head_dim, 16);
  for (const int page_tokens : {8, 32}) CheckGroups(gpu, 128, page_tokens);
}

}  // namespace winnow
