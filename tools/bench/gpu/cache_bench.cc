#include <chrono>

#include "kernels/device/flash_d2h.h"
#include "tools/bench/gpu/checks/cache_checks.h"
#include "tools/bench/gpu/checks/cache_fixture.h"

namespace winnow {
namespace {

constexpr uint32_t kContext = 32768, kBudget = 2048;
constexpr int kHeads = 8;
constexpr size_t kRowBytes = 512;
constexpr double kCopyBytesPerUs = 4.3e6;  // of an H200: bytes read plus bytes written by a kernel

uint32_t* UploadSelections(GpuContext& gpu, int num_lists, uint32_t count, uint32_t stride, uint32_t bound) {
  std::vector<uint32_t> positions(static_cast<size_t>(num_lists) * stride);
  for (int list = 0; list < num_lists; ++list) {
    const std::vector<uint32_t> chosen = RandomPositions(gpu, count, bound);
    std::copy(chosen.begin(), chosen.end(), positions.begin() + static_cast<size_t>(list) * stride);
  }
  return gpu.Upload(positions);
}

uint32_t* UploadCounts(GpuContext& gpu, int num_lists, uint32_t count) {
  return gpu.Upload(std::vector<uint32_t>(num_lists, count));
}

void BenchGather(GpuContext& gpu) {
  for (const auto& [batch, goal_us] : {std::pair{1, 6.0}, {8, 36.0}, {32, 130.0}}) {
    const int num_lists = batch * kHeads, sets = batch == 1 ? 16 : 4;
    const BlockLists lists(gpu, num_lists, kContext);
    const uint8_t* const pool = NewRandomBytes(gpu, lists.num_rows() * kRowBytes);
    const uint32_t* const counts = UploadCounts(gpu, num_lists, kBudget);
    const size_t out_bytes = size_t{kBudget} * num_lists * kRowBytes;
    std::vector<const uint32_t*> positions;
    std::vector<uint8_t*> out;
    for (int set = 0; set < sets; ++set) {
      positions.push_back(UploadSelections(gpu, num_lists, kBudget, kBudget, kContext));
      out.push_back(gpu.New<uint8_t>(out_bytes));
    }
    const double us = gpu.MedianUs(sets, 16, [&](device::Stream stream, int set) {
      gpu.table.cache->gather(stream, pool, kRowBytes, lists.device_lists, lists.device_blocks, positions[set], counts,
                              num_lists, kBudget, out[set]);
    });
    gpu.report.Time("gather 2048 rows of 512 B, 8 heads, B = " + std::to_string(batch), us,
                    2 * out_bytes / kCopyBytesPerUs, goal_us);
    gpu.FreeAll();
  }
}

// Pools of 4,096 with 2,048 selected rows of which a quarter is new in every plan.
void BenchAssignSlots(GpuContext& gpu) {
  constexpr uint32_t kPool = 4096, kPlans = 48;
  for (const int num_lists : {8, 64, 256}) {
    std::vector<device::ResidencyList> residency;
    std::vector<uint32_t> position_of(kPool);
    for (uint32_t i = 0; i < kPool; ++i) position_of[i] = 8 * i;
    uint32_t* const last_plans = gpu.NewZeroed<uint32_t>(size_t{kPool} * num_lists);
    for (int list = 0; list < num_lists; ++list) {
      residency.push_back({.position_of = gpu.Upload(position_of),
                           .last_plan = last_plans + size_t{kPool} * list,
                           .pool_slots = kPool});
    }
    const size_t entries = size_t{kBudget} * num_lists;
    std::vector<std::vector<uint32_t>> selections(kPlans, std::vector<uint32_t>(entries));
    for (int list = 0; list < 8; ++list) {
      std::vector<uint32_t> hot = RandomPositions(gpu, kBudget, kContext);
      for (uint32_t plan = 0; plan < kPlans; ++plan) {
        std::copy(hot.begin(), hot.end(), selections[plan].begin() + size_t{kBudget} * list);
        std::erase_if(hot, [&](uint32_t) { return RandomBelow(gpu, 4) == 0; });
        while (hot.size() < kBudget) {
          const uint32_t position = RandomBelow(gpu, kContext);
          const auto at = std::lower_bound(hot.begin(), hot.end(), position);
          if (at == hot.end() || *at != position) hot.insert(at, position);
        }
      }
    }
    std::vector<const uint32_t*> selected;
    for (std::vector<uint32_t>& selection : selections) {
      for (size_t i = 8 * kBudget; i < entries; ++i) selection[i] = selection[i - 8 * kBudget];
      selected.push_back(gpu.Upload(selection));
    }
    device::AssignSlotsParams p{.residency = gpu.Upload(residency),
                                .counts = UploadCounts(gpu, num_lists, kBudget),
                                .num_lists = num_lists,
                                .max_budget = kBudget,
                                .max_pool_slots = kPool,
                                .max_positions = kContext,
                                .pool_indices = gpu.New<uint32_t>(entries),
                                .missing = gpu.New<uint32_t>(entries),
                                .missing_indices = gpu.New<uint32_t>(entries),
                                .missing_counts = gpu.NewZeroed<uint32_t>(num_lists)};
    const double us = gpu.MedianUs(kPlans, kPlans, [&](device::Stream stream, int set) {
      p.selected = selected[set];
      // Plans start again with every replay: so do the ages.
      if (set == 0) gpu.device.FillAsync(last_plans, 0, size_t{kPool} * num_lists * 4, stream);
      p.plan = set + 1;
      gpu.table.cache->assign_slots(stream, p);
    });
    const double missing = gpu.Download(p.missing_counts, 1)[0];
    const double bytes = num_lists * (kBudget * 8.0 + kPool * 12.0 + missing * 12.0);
    gpu.report.Time("slots of " + std::to_string(num_lists) + " lists, 2048 of pool 4096, missing " +
                        std::to_string(static_cast<int>(missing)),
                    us, bytes / kCopyBytesPerUs, num_lists == 64 ? 6 : 0);
    gpu.FreeAll();
  }
}

void BenchAppend(GpuContext& gpu) {
  for (const int batch : {1, 8, 64}) {
    const int num_lists = batch * kHeads;
    const BlockLists lists(gpu, num_lists, 1024);
    const device::AppendParams p{.rows = NewRandomBytes(gpu, num_lists * kRowBytes),
                                 .num_lists = num_lists,
                                 .head_dim = 128,
                                 .positions = UploadCounts(gpu, num_lists, 777),
                                 .lists = lists.device_lists,
                                 .blocks = lists.device_blocks,
                                 .row_pool = gpu.New<uint8_t>(lists.num_rows() * kRowBytes),
                                 .key_copy = gpu.New<uint8_t>(lists.num_rows() * 128),
                                 .key_scales = gpu.New<float>(lists.num_rows()),
                                 .bounds = gpu.New<uint8_t>(lists.num_rows() / 16 * kRowBytes),
                                 .page_tokens = 16};
    const double us = gpu.MedianUs(1, 20, [&](device::Stream stream, int) { gpu.table.cache->append(stream, p); });
    gpu.report.Time("append, 8 heads, B = " + std::to_string(batch), us,
                    num_lists * (4 * kRowBytes + 132.0) / kCopyBytesPerUs);
    gpu.FreeAll();
  }
}

struct PushShape {
  const char* name;
  int num_lists;
  uint32_t count;
  bool from_host, with_lists, raises;
  int max_ctas;
};

void BenchPush(GpuContext& gpu) {
  std::vector<PushShape> shapes = {
      {"push 8 x 50 rows to this GPU, lists, flag", 8, 50, false, true, true, 0},
      {"push 8 x 50 rows to this GPU, lists, flag, 132 CTAs", 8, 50, false, true, true, 132},
      {"push 8 x 50 rows to this GPU, lists, flag, 64 CTAs", 8, 50, false, true, true, 64},
      {"push 8 x 50 rows to this GPU, no lists, no flag", 8, 50, false, false, false, 132},
      {"push 64 x 512 rows to this GPU, lists, flag", 64, 512, false, true, true, 0},
      {"gather 64 x 512 rows from the host, 8 CTAs", 64, 512, true, false, false, 8},
      {"gather 64 x 512 rows from the host, 32 CTAs", 64, 512, true, false, false, 32},
      {"gather 64 x 512 rows from the host, 128 CTAs", 64, 512, true, false, false, 128},
      {"gather 8 x 1024 rows from the host, 32 CTAs", 8, 1024, true, false, false, 32},
  };
  constexpr int kSets = 6;
  constexpr uint32_t kPool = 4096, kPositions = 8192;
  for (const PushShape& shape : shapes) {
    const BlockLists lists(gpu, shape.num_lists, kPositions);
    const size_t pool_bytes = lists.num_rows() * kRowBytes;
    std::unique_ptr<device::DeviceMemory> host_pool;
    const void* pool = NewRandomBytes(gpu, pool_bytes);
    if (shape.from_host) {
      auto memory = gpu.device.AllocatePinned(pool_bytes);
      WINNOW_CHECK(memory.ok());
      host_pool = *std::move(memory);
      gpu.device.CopyAsync(host_pool->data(), pool, pool_bytes, gpu.stream);
      pool = host_pool->data();
    }
    std::vector<uint32_t> pages(shape.num_lists * kPool / kSlotPageTokens);
    std::iota(pages.begin(), pages.end(), 0u);
    std::shuffle(pages.begin(), pages.end(), gpu.random);
    const uint32_t* const device_pages = gpu.Upload(pages);
    uint8_t* const slots = gpu.New<uint8_t>(pages.size() * kSlotPageTokens * kRowBytes);
    std::vector<device::PushTarget> targets;
    for (int list = 0; list < shape.num_lists; ++list) {
      targets.push_back({slots, device_pages + list * (kPool / kSlotPageTokens), 0});
    }
    device::PushParams p{.lists = lists.device_lists,
                         .blocks = lists.device_blocks,
                         .row_pool = pool,
                         .row_bytes = kRowBytes,
                         .targets = gpu.Upload(targets),
                         .missing_counts = UploadCounts(gpu, shape.num_lists, shape.count),
                         .num_lists = shape.num_lists,
                         .max_budget = kBudget,
                         .max_ctas = shape.max_ctas};
    if (shape.with_lists) {
      p.pool_indices = UploadSelections(gpu, shape.num_lists, kBudget, kBudget, kPool);
      p.counts = UploadCounts(gpu, shape.num_lists, kBudget);
      p.peer_pool_indices = gpu.New<uint32_t>(size_t{kBudget} * shape.num_lists);
      p.peer_counts = gpu.New<uint32_t>(shape.num_lists);
    }
    uint32_t* const words = gpu.NewZeroed<uint32_t>(8);
    if (shape.raises) {
      p.raise = {words, words + 1};
      p.done_ctas = words + 2;
    }
    std::vector<const uint32_t*> missing, indices;
    for (int set = 0; set < kSets; ++set) {
      missing.push_back(UploadSelections(gpu, shape.num_lists, shape.count, kBudget, kPositions));
      indices.push_back(UploadSelections(gpu, shape.num_lists, shape.count, kBudget, kPool));
    }
    const double us = gpu.MedianUs(kSets, 12, [&](device::Stream stream, int set) {
      p.missing = missing[set];
      p.missing_indices = indices[set];
      gpu.table.cache->push(stream, p);
    });
    const double bytes = static_cast<double>(shape.num_lists) * shape.count * kRowBytes;
    gpu.report.Time(shape.name, us, shape.from_host ? bytes / 55.5e3 : 2 * bytes / kCopyBytesPerUs);
    gpu.FreeAll();
  }
}

// A decode step of 40 layers and 8 heads, to random places: how long the GPU's copy takes, and until all rows lie
// there.
void BenchFlashD2H(GpuContext& gpu) {
  for (const size_t batch : {8, 64}) {
    const size_t num_rows = batch * kHeads * 40;
    auto saver = device::FlashD2H::Create(gpu.device, num_rows * kRowBytes, 4);
    WINNOW_CHECK(saver.ok());
    const uint8_t* const rows = NewRandomBytes(gpu, num_rows * kRowBytes);
    std::vector<std::byte> kept(num_rows * 16 * kRowBytes);
    std::vector<std::byte*> destinations;
    for (size_t i = 0; i < num_rows; ++i) {
      destinations.push_back(kept.data() + (i * 16 + RandomBelow(gpu, 16)) * kRowBytes);
    }
    std::shuffle(destinations.begin(), destinations.end(), gpu.random);
    std::vector<double> copy_us, all_us;
    for (int i = 0; i < 20; ++i) {
      const auto start = std::chrono::steady_clock::now();
      uint64_t ticket = 0;
      const absl::StatusOr<double> us = gpu.device.TimeUs(
          gpu.stream, [&](device::Stream stream) { ticket = (*saver)->Save(stream, rows, kRowBytes, destinations); });
      (*saver)->Await(ticket);
      copy_us.push_back(us.value_or(0));
      all_us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    const double floor_us = num_rows * kRowBytes / 55.1e3;
    for (auto& [what, times] : {std::pair{"on the GPU", &copy_us}, std::pair{"until scattered", &all_us}}) {
      std::sort(times->begin(), times->end());
      gpu.report.Time("FlashD2H of a step, B = " + std::to_string(batch) + ", " + what, (*times)[times->size() / 2],
                      floor_us);
    }
    gpu.FreeAll();
  }
}

void BenchFlags(GpuContext& gpu) {
  uint32_t* const words = gpu.NewZeroed<uint32_t>(8);
  gpu.report.Time("raise, then wait, one stream",
                  gpu.MedianUs(1, 20,
                               [&](device::Stream stream, int) {
                                 gpu.table.cache->raise(stream, {words, words + 1});
                                 gpu.table.cache->wait(stream, {words, words + 1, words + 2, words + 3});
                               }),
                  0);
  gpu.FreeAll();
}

}  // namespace

void BenchCache(GpuContext& gpu) {
  BenchGather(gpu);
  BenchAssignSlots(gpu);
  BenchAppend(gpu);
  BenchPush(gpu);
  BenchFlags(gpu);
  BenchFlashD2H(gpu);
}

}  // namespace winnow
