#include "tools/bench/gpu/checks/int8_rows_check.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/kv_layout.h"
#include "kernels/kernel_table.h"
#include "tools/bench/gpu/checks/cache_fixture.h"
#include "tools/bench/gpu/checks/selection_inputs.h"
#include "tools/bench/gpu/elementwise_reference.h"

namespace winnow {
namespace {

using namespace elementwise;

// A key, or a value, of one of many kinds.
void FillHead(GpuContext& gpu, int kind, std::span<float> head) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::normal_distribution<float> normal;
  for (float& x : head) x = normal(gpu.random);
  float& one = head[gpu.random() % head.size()];
  switch (kind) {
    case 0:
      return std::fill(head.begin(), head.end(), 0.0f);
    case 1:  // so small that it counts as zeros
      for (float& x : head) x *= 0x1p-104f;
      return;
    case 2:
      one = gpu.random() % 2 == 0 ? kInfinity : -kInfinity;
      return;
    case 3:
      one = std::numeric_limits<float>::quiet_NaN();
      return;
    case 4:  // a channel far above the others
      one = 1e4f;
      return;
    case 5:  // steps of one half: every other element is a tie
      for (float& x : head) x = static_cast<float>(static_cast<int>(gpu.random() % 255) - 127) / 2;
      one = -63.5f;
      return;
    case 6:  // the largest numbers there are
      for (float& x : head) x = x < 0 ? -std::numeric_limits<float>::max() : std::numeric_limits<float>::max() / 2;
      return;
    case 7:  // all alike
      return std::fill(head.begin(), head.end(), -0.3f);
    default:
      return;
  }
}

}  // namespace

void CheckRopeInt8Rows(GpuContext& gpu, int head_dim, int num_rows) {
  const RopeCase c = {head_dim, 8, 4, false, false};
  RopeRows rows = RandomRopeRows(gpu, c, num_rows);
  const int width = (c.num_query_heads + 2 * c.num_kv_heads) * head_dim;
  for (int row = 0; row < num_rows; ++row) {
    for (int head = c.num_query_heads; head < c.num_query_heads + 2 * c.num_kv_heads; ++head) {
      FillHead(gpu, static_cast<int>(gpu.random() % 12),
               std::span(rows.qkv).subspan(static_cast<size_t>(row) * width + head * head_dim, head_dim));
    }
  }
  // At position 0 nothing turns: both sides quantise the same numbers.
  std::fill(rows.positions.begin(), rows.positions.end(), 0u);
  const size_t kv_rows = static_cast<size_t>(num_rows) * c.num_kv_heads, code_bytes = 2 * head_dim;
  const size_t row_bytes = RowLayout().bytes(head_dim, Dtype::kI8);
  std::vector<std::byte> wanted(kv_rows * row_bytes);
  std::vector<float> q(static_cast<size_t>(num_rows) * c.num_query_heads * head_dim);
  const KernelTable& cpu = **CpuKernels("portable");
  const std::unique_ptr<Executor> executor = cpu.new_executor(1);
  cpu.rope_append(*executor, {.qkv = rows.qkv.data(),
                              .qkv_stride = width,
                              .num_rows = num_rows,
                              .num_query_heads = c.num_query_heads,
                              .num_kv_heads = c.num_kv_heads,
                              .head_dim = head_dim,
                              .positions = rows.positions.data(),
                              .rope_inv_freq = rows.inv_freq.data(),
                              .rope_attention_factor = UploadRope(gpu, c, rows).rope_attention_factor,
                              .kv_dtype = Dtype::kI8,
                              .q = q.data(),
                              .kv_rows = wanted.data()});

  device::RopeAppendParams params = UploadRope(gpu, c, rows);
  params.kv_dtype = Dtype::kI8;
  auto* const copy = gpu.New<std::byte>(kv_rows * row_bytes);
  auto* const place = gpu.New<std::byte>(kv_rows * row_bytes);
  auto* const slots = gpu.New<std::byte>(kv_rows * row_bytes);
  params.kv_copy = copy;
  const auto destinations = [&](std::byte* first, size_t bytes) {  // in reverse order
    std::vector<void*> to(kv_rows);
    for (size_t i = 0; i < kv_rows; ++i) to[i] = first + (kv_rows - 1 - i) * bytes;
    return gpu.Upload(to);
  };
  params.kv_destinations = destinations(place, row_bytes);
  gpu.table.elementwise->rope_append(gpu.stream, params);
  params.kv_copy = nullptr;
  params.kv_destinations = destinations(slots, code_bytes);
  params.slot_pool = slots;
  params.slot_scales = reinterpret_cast<float*>(slots + kv_rows * code_bytes);
  gpu.table.elementwise->rope_append(gpu.stream, params);

  const std::vector<std::byte> copied = gpu.Download(copy, wanted.size());
  const std::vector<std::byte> placed = gpu.Download(place, wanted.size());
  const std::vector<std::byte> in_slots = gpu.Download(slots, wanted.size());
  double differing[3] = {};
  for (size_t i = 0; i < kv_rows; ++i) {
    const std::byte* const row = &wanted[i * row_bytes];
    const size_t reversed = kv_rows - 1 - i;
    differing[0] += std::memcmp(&copied[i * row_bytes], row, row_bytes) != 0;
    differing[1] += std::memcmp(&placed[reversed * row_bytes], row, row_bytes) != 0;
    differing[2] += std::memcmp(&in_slots[reversed * code_bytes], row, code_bytes) != 0 ||
                    std::memcmp(&in_slots[kv_rows * code_bytes + reversed * 8], row + code_bytes, 8) != 0;
  }
  const std::string what = absl::StrCat("rope int8 rows, head_dim ", head_dim, " x", num_rows, ": ");
  gpu.report.Check(what + "copied", differing[0], 0);
  gpu.report.Check(what + "at their destinations", differing[1], 0);
  gpu.report.Check(what + "in slots", differing[2], 0);
  gpu.FreeAll();
}

void CheckIndexOfInt8Rows(GpuContext& gpu, int head_dim, int page_tokens) {
  constexpr int kLists = 5;
  constexpr uint32_t kPositions = 96;
  const BlockLists lists(gpu, kLists, kPositions);
  const size_t dim = head_dim, row_codes = 2 * dim, pages_per_block = kBlockTokens / page_tokens;
  std::vector<int8_t> codes(lists.num_rows() * row_codes);
  for (int8_t& code : codes) code = static_cast<int8_t>(static_cast<int>(gpu.random() % 255) - 127);
  std::vector<float> scales(2 * lists.num_rows());
  for (float& scale : scales) {
    scale = std::exp2(static_cast<float>(gpu.random() % 8000) / 1000 - 4);
    if (gpu.random() % 16 == 0) scale = std::numeric_limits<float>::quiet_NaN();
    if (gpu.random() % 16 == 0) scale = 0;
  }
  const auto key = [&](size_t row, size_t d) {
    return std::isfinite(scales[2 * row]) ? static_cast<float>(codes[row * row_codes + d]) * scales[2 * row] : 0.0f;
  };
  const auto round = [](float value, bool up) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<uint16_t>((bits >> 16) + (up == (value > 0) && (bits & 0xffff) != 0 ? 1 : 0));
  };
  std::vector<uint16_t> bounds(static_cast<size_t>(lists.num_blocks) * pages_per_block * row_codes, 0xffff);
  std::vector<uint16_t> cuboids = bounds;
  for (int list = 0; list < kLists; ++list) {
    for (uint32_t first = 0; first < kPositions; first += page_tokens) {
      const size_t row = lists.Row(list, first);
      const size_t page = row / kBlockTokens * pages_per_block + row % kBlockTokens / page_tokens;
      for (size_t d = 0; d < dim; ++d) {
        float most = key(row, d), least = most, distance = 0;
        for (int i = 0; i < page_tokens; ++i) {
          most = std::max(most, key(row + i, d));
          least = std::min(least, key(row + i, d));
        }
        const float centre = most / 2 + least / 2;
        for (int i = 0; i < page_tokens; ++i) distance += std::abs(key(row + i, d) - centre);
        const float radius = distance / static_cast<float>(page_tokens);
        bounds[page * row_codes + d] = round(most, true);
        bounds[page * row_codes + dim + d] = round(least, false);
        cuboids[page * row_codes + d] = F32ToBf16(centre + radius);
        cuboids[page * row_codes + dim + d] = F32ToBf16(centre - radius);
      }
    }
  }
  const int8_t* const row_pool = gpu.Upload(codes);
  const float* const row_scales = gpu.Upload(scales);
  auto* const found = gpu.New<uint16_t>(bounds.size());
  auto* const found_cuboids = gpu.New<uint16_t>(bounds.size());
  for (uint32_t position = 0; position < kPositions;) {
    const uint32_t count = std::min<uint32_t>(1 + gpu.random() % 40, kPositions - position);
    const std::vector<uint32_t> positions(kLists, position);
    const uint32_t* const firsts = gpu.Upload(positions);
    gpu.table.cache->append(gpu.stream, {.num_lists = kLists,
                                         .rows_per_list = static_cast<int>(count),
                                         .head_dim = head_dim,
                                         .positions = firsts,
                                         .lists = lists.device_lists,
                                         .blocks = lists.device_blocks,
                                         .row_pool = const_cast<int8_t*>(row_pool),
                                         .bounds = found,
                                         .page_tokens = page_tokens,
                                         .row_scales = row_scales});
    if (page_tokens >= 16) {
      gpu.table.page_units->index_cuboids(gpu.stream, {.lists = lists.device_lists,
                                                       .num_lists = kLists,
                                                       .positions = firsts,
                                                       .rows_per_list = static_cast<int>(count),
                                                       .blocks = lists.device_blocks,
                                                       .row_pool = row_pool,
                                                       .row_scales = row_scales,
                                                       .head_dim = head_dim,
                                                       .page_tokens = page_tokens,
                                                       .cuboids = found_cuboids});
    }
    position += count;
  }
  const std::string name = absl::StrCat("index of int8 rows, head_dim ", head_dim, ", pages of ", page_tokens, ": ");
  // As numbers: of zeros the sign is either.
  const auto differences = [&](const uint16_t* device, const std::vector<uint16_t>& wanted) {
    const std::vector<uint16_t> got = gpu.Download(device, wanted.size());
    double differing = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      differing += got[i] != wanted[i] && Bf16ToF32(got[i]) != Bf16ToF32(wanted[i]);
    }
    return differing;
  };
  gpu.report.Check(name + "bounds", differences(found, bounds), 0);
  if (page_tokens >= 16) gpu.report.Check(name + "cuboids", differences(found_cuboids, cuboids), 0);
  gpu.FreeAll();
}

void CheckMassOfInt8Rows(GpuContext& gpu, int head_dim) {
  const SelectionInputs inputs(gpu, {.head_dim = head_dim, .group = 4, .dtype = Dtype::kI8, .rows = true},
                               {900, 5000, 333}, 64);
  const device::SelectParams params = inputs.Params();
  const auto num_lists = static_cast<int>(inputs.lists.size());
  std::vector<uint32_t> positions, selected(inputs.lists.size() * 64), counts;
  std::vector<device::SelectionList> lists = inputs.lists;
  for (size_t l = 0; l < lists.size(); ++l) {
    positions.push_back(lists[l].num_keys - 1);
    lists[l].query = static_cast<uint32_t>(l);
    counts.push_back(lists[l].budget);
    for (uint32_t i = 0; i < lists[l].budget; ++i) selected[l * 64 + i] = lists[l].first + 3 * i;
  }
  device::AttendedMassParams mass = {.lists = gpu.Upload(lists),
                                     .num_rows = num_lists,
                                     .num_kv_heads = 1,
                                     .blocks = params.blocks,
                                     .keys = params.keys,
                                     .head_dim = head_dim,
                                     .group = 4,
                                     .scale = inputs.scale,
                                     .queries = params.queries,
                                     .max_keys = inputs.max_keys,
                                     .positions = gpu.Upload(positions),
                                     .prompt_tokens = gpu.Upload(positions),
                                     .interval = 16,
                                     .selected = gpu.Upload(selected),
                                     .counts = gpu.Upload(counts),
                                     .max_budget = 64,
                                     .plan = gpu.Upload(std::vector<uint32_t>{7}),
                                     .masses = gpu.New<device::MeasuredMass>(lists.size()),
                                     .arrivals = gpu.NewZeroed<uint32_t>(lists.size())};
  mass.scratch = gpu.NewZeroed<uint8_t>(gpu.table.mass->mass_scratch_bytes(mass));
  gpu.table.mass->attended_mass(gpu.stream, mass);
  const auto found = gpu.Download(mass.masses, lists.size());
  double worst = 0;
  for (size_t l = 0; l < lists.size(); ++l) {
    double mean = 0;
    for (int g = 0; g < 4; ++g) {
      std::vector<double> scores(lists[l].num_keys);
      for (uint32_t row = 0; row < lists[l].num_keys; ++row) {
        for (int d = 0; d < head_dim; ++d) {
          scores[row] +=
              inputs.scale * double{inputs.queries[(l * 4 + g) * head_dim + d]} * inputs.Key(inputs.lists[l], row, d);
        }
      }
      double all = 0, held = 0;
      for (uint32_t row = 0; row < lists[l].num_keys; ++row) {
        const uint32_t at = row - lists[l].first;
        const bool attended = row < lists[l].first || row >= lists[l].last || (at % 3 == 0 && at / 3 < lists[l].budget);
        all += std::exp(scores[row]);
        held += attended ? std::exp(scores[row]) : 0;
      }
      mean += held / all / 4;
    }
    const double error = std::abs(found[l].mass - mean);
    if (!(error <= worst)) worst = error;
  }
  gpu.report.Check(absl::StrCat("captured mass of int8 rows, head_dim ", head_dim), worst, 1e-4);
  gpu.FreeAll();
}

}  // namespace winnow
