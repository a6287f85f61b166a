#include "tools/bench/gpu/checks/cache_checks.h"
#include "tools/bench/gpu/checks/cache_fixture.h"

namespace winnow {
namespace {

struct Case {
  size_t row_bytes;
  std::vector<uint32_t> counts;
  uint32_t max_count;
  int max_ctas;
  uint32_t positions = 3000;  // of each list; its pool has as many slots
};

// Positions of each list, padded to max_count with numbers that would fault.
std::vector<uint32_t> Pad(GpuContext& gpu, const Case& c) {
  std::vector<uint32_t> padded(c.counts.size() * c.max_count, 0xf0000000);
  for (size_t list = 0; list < c.counts.size(); ++list) {
    const std::vector<uint32_t> positions = RandomPositions(gpu, c.counts[list], c.positions);
    std::copy(positions.begin(), positions.end(), padded.begin() + list * c.max_count);
  }
  return padded;
}

std::string Name(const char* what, const Case& c) {
  return std::string(what) + " of " + std::to_string(c.counts.size()) + " lists, " + std::to_string(c.row_bytes) +
         " B rows" + (c.max_ctas > 0 ? ", few CTAs" : "");
}

void CheckGather(GpuContext& gpu, const Case& c) {
  const int num_lists = static_cast<int>(c.counts.size());
  const BlockLists lists(gpu, num_lists, c.positions);
  const size_t pool_bytes = lists.num_rows() * c.row_bytes;
  const uint8_t* const pool = NewRandomBytes(gpu, pool_bytes);
  const std::vector<uint32_t> positions = Pad(gpu, c);
  uint8_t* const out = gpu.New<uint8_t>(positions.size() * c.row_bytes);
  gpu.table.cache->gather(gpu.stream, pool, c.row_bytes, lists.device_lists, lists.device_blocks, gpu.Upload(positions),
                          gpu.Upload(c.counts), num_lists, c.max_count, out);
  const std::vector<uint8_t> got = gpu.Download(out, positions.size() * c.row_bytes);
  const std::vector<uint8_t> rows = gpu.Download(pool, pool_bytes);
  std::vector<uint8_t> wanted(got.size(), 0xff);
  for (int list = 0; list < num_lists; ++list) {
    for (uint32_t i = 0; i < c.counts[list]; ++i) {
      const size_t entry = static_cast<size_t>(list) * c.max_count + i;
      std::copy_n(rows.begin() + lists.Row(list, positions[entry]) * c.row_bytes, c.row_bytes,
                  wanted.begin() + entry * c.row_bytes);
    }
  }
  gpu.report.Check(Name("gather", c), Differences(got, wanted), 0);
  gpu.FreeAll();
}

// `pinned`: the blocks lie in host memory (FlashH2D).
void CheckPush(GpuContext& gpu, const Case& c, bool pinned) {
  constexpr uint32_t kPoolBase = 100;
  const uint32_t pages_per_list = (kPoolBase + c.positions + kSlotPageTokens - 1) / kSlotPageTokens;
  const int num_lists = static_cast<int>(c.counts.size());
  const BlockLists lists(gpu, num_lists, c.positions);
  const size_t pool_bytes = lists.num_rows() * c.row_bytes;
  std::vector<uint8_t> rows(pool_bytes);
  for (uint8_t& byte : rows) byte = static_cast<uint8_t>(gpu.random());
  std::unique_ptr<device::DeviceMemory> host_pool;
  const void* pool = nullptr;
  if (pinned) {
    auto memory = gpu.device.AllocatePinned(pool_bytes);
    WINNOW_CHECK(memory.ok());
    host_pool = *std::move(memory);
    std::copy(rows.begin(), rows.end(), static_cast<uint8_t*>(host_pool->data()));
    pool = host_pool->data();
  } else {
    pool = gpu.Upload(rows);
  }

  // Pages of all lists in random order in two slot pools.
  std::vector<uint32_t> pages(pages_per_list * num_lists);
  std::iota(pages.begin(), pages.end(), 0u);
  std::shuffle(pages.begin(), pages.end(), gpu.random);
  const uint32_t* const device_pages = gpu.Upload(pages);
  const size_t slots_bytes = pages.size() * kSlotPageTokens * c.row_bytes;
  uint8_t* const slot_pools[2] = {gpu.New<uint8_t>(slots_bytes), gpu.New<uint8_t>(slots_bytes)};
  // Some lists are nobody's.
  const auto is_nobodys = [&](int list) { return list % 2 == 1 && c.counts[list] == 0; };
  std::vector<device::PushTarget> targets;
  for (int list = 0; list < num_lists; ++list) {
    targets.push_back(is_nobodys(list)
                          ? device::PushTarget{}
                          : device::PushTarget{slot_pools[list % 2], device_pages + list * pages_per_list, kPoolBase});
  }
  const std::vector<uint32_t> positions = Pad(gpu, c);
  std::vector<uint32_t> indices = Pad(gpu, c);
  for (int list = 0; list < num_lists; ++list) {
    const auto begin = indices.begin() + list * c.max_count;
    std::shuffle(begin, begin + c.counts[list], gpu.random);
  }
  std::vector<uint32_t> selection(positions.size()), selection_counts;
  FillRandomly(gpu, selection);
  for (int list = 0; list < num_lists; ++list) {
    const uint32_t count = c.counts[list], more = RandomBelow(gpu, c.max_count - count + 1);
    selection_counts.push_back(is_nobodys(list) ? 0 : std::min(c.max_count, count + more));
  }
  uint32_t* const peer_indices = gpu.New<uint32_t>(selection.size());
  uint32_t* const peer_counts = gpu.New<uint32_t>(num_lists);
  uint64_t* const pushed_rows = gpu.NewZeroed<uint64_t>(1);
  uint32_t* const done_ctas = gpu.NewZeroed<uint32_t>(1);
  uint32_t* const flag = gpu.NewZeroed<uint32_t>(1);
  const device::PushParams p{.lists = lists.device_lists,
                             .blocks = lists.device_blocks,
                             .row_pool = pool,
                             .row_bytes = c.row_bytes,
                             .targets = gpu.Upload(targets),
                             .missing = gpu.Upload(positions),
                             .missing_indices = gpu.Upload(indices),
                             .missing_counts = gpu.Upload(c.counts),
                             .num_lists = num_lists,
                             .max_budget = c.max_count,
                             .pool_indices = gpu.Upload(selection),
                             .counts = gpu.Upload(selection_counts),
                             .peer_pool_indices = peer_indices,
                             .peer_counts = peer_counts,
                             .pushed_rows = pushed_rows,
                             .raise = {flag, gpu.Upload(std::vector<uint32_t>{4711})},
                             .done_ctas = done_ctas,
                             .max_ctas = c.max_ctas};
  gpu.table.cache->push(gpu.stream, p);
  gpu.table.cache->push(gpu.stream, p);

  std::vector<uint8_t> wanted[2] = {std::vector<uint8_t>(slots_bytes, 0xff), std::vector<uint8_t>(slots_bytes, 0xff)};
  std::vector<uint32_t> wanted_indices(selection.size(), ~0u), wanted_counts = selection_counts;
  uint64_t total = 0;
  for (int list = 0; list < num_lists; ++list) {
    total += c.counts[list];
    if (is_nobodys(list)) wanted_counts[list] = ~0u;
    for (uint32_t i = 0; i < c.counts[list]; ++i) {
      const size_t entry = static_cast<size_t>(list) * c.max_count + i;
      const uint32_t local = kPoolBase + indices[entry];
      const size_t slot =
          size_t{pages[list * pages_per_list + local / kSlotPageTokens]} * kSlotPageTokens + local % kSlotPageTokens;
      std::copy_n(rows.begin() + lists.Row(list, positions[entry]) * c.row_bytes, c.row_bytes,
                  wanted[list % 2].begin() + slot * c.row_bytes);
    }
    const auto begin = selection.begin() + list * c.max_count;
    std::copy_n(begin, selection_counts[list], wanted_indices.begin() + list * c.max_count);
  }
  const std::string name = Name(pinned ? "push from the host" : "push", c);
  for (int i = 0; i < 2; ++i) {
    gpu.report.Check(name + ": slots", Differences(gpu.Download(slot_pools[i], slots_bytes), wanted[i]), 0);
  }
  gpu.report.Check(name + ": selection", Differences(gpu.Download(peer_indices, selection.size()), wanted_indices), 0);
  gpu.report.Check(name + ": counts", Differences(gpu.Download(peer_counts, num_lists), wanted_counts), 0);
  gpu.report.Check(name + ": counter", gpu.Download(pushed_rows, 1)[0] != 2 * total, 0);
  gpu.report.Check(name + ": flag", gpu.Download(flag, 1)[0] != 4711, 0);
  gpu.report.Check(name + ": word of CTAs", gpu.Download(done_ctas, 1)[0] != 0, 0);
  gpu.FreeAll();
}

}  // namespace

void CheckMoves(GpuContext& gpu) {
  std::vector<uint32_t> many;
  for (int i = 0; i < 600; ++i) many.push_back(i % 7 == 0 ? 0 : RandomBelow(gpu, 20));
  for (const size_t row_bytes : gpu.Cases<size_t>({64, 128, 192, 256, 384, 512, 1024})) {
    const Case ragged{row_bytes, {0, 7, 1500, 0, 31, 1, 0}, 1503, 0};
    CheckGather(gpu, ragged);
    CheckPush(gpu, ragged, false);
  }
  for (const Case& c : {Case{512, {0}, 4, 0}, Case{512, {2048}, 2048, 0}, Case{512, {2048, 2000}, 2048, 3},
                        Case{256, many, 20, 0, 40}, Case{512, many, 20, 5, 40}}) {
    CheckGather(gpu, c);
    CheckPush(gpu, c, false);
  }
  CheckPush(gpu, {512, {0, 7, 1500, 31, 1}, 1500, 32}, true);
}

}  // namespace winnow
