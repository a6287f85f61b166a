#include <algorithm>

#include "tools/bench/gpu/checks/cache_fixture.h"
#include "tools/bench/gpu/links/link_sections.h"

namespace winnow {

double LinkBench::ReplayUs(const std::function<void(device::Stream)>& enqueue, int replays) {
  absl::StatusOr<std::unique_ptr<device::Graph>> graph = gpu_.device.Capture(gpu_.stream, enqueue);
  Check(graph.status());
  std::vector<double> times;
  for (int i = 0; i < replays; ++i) {
    gpu_.device.FillAsync(own_flag(), 0, 4, gpu_.stream);
    Check(gpu_.device.Synchronize(gpu_.stream));
    process_.socket.Barrier();
    const absl::StatusOr<double> us =
        gpu_.device.TimeUs(gpu_.stream, [&](device::Stream stream) { (*graph)->Launch(stream); });
    Check(us.status());
    Check(ends_.link->status());
    process_.socket.Barrier();
    times.push_back(us.value_or(0));
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void LinkBench::FlagRoundTrip() {
  const uint32_t rounds = ends_.one_gpu ? 5 : 20000;
  const double us = ReplayUs(
      [&](device::Stream stream) { gpu_.table.cache->ping(stream, peer_flag(), WaitFor(1), rounds, is_receiver()); },
      3);
  if (is_receiver()) gpu_.report.Time("flag, round trip", us / rounds, 0);
  const int layers = ends_.one_gpu ? 3 : 400;
  const double kernels_us = ReplayUs(
      [&](device::Stream stream) {
        for (int layer = 1; layer <= layers; ++layer) {
          if (is_receiver()) gpu_.table.cache->raise(stream, {peer_flag(), numbers_ + layer});
          gpu_.table.cache->wait(stream, WaitFor(layer));
          if (!is_receiver()) gpu_.table.cache->raise(stream, {peer_flag(), numbers_ + layer});
        }
      },
      5);
  if (is_receiver()) gpu_.report.Time("raise and wait as kernels, round trip", kernels_us / layers, 0);
}

// Rows of random blocks to random slots of the receiver, whose pages lie in order.
LinkBench::Push LinkBench::MakePush(int num_lists, uint32_t rows_per_list, bool with_selection, int max_ctas) {
  const BlockLists lists(gpu_, num_lists, kPositions);
  std::vector<uint32_t> pages(num_lists * kPoolSlots / kSlotPageTokens);
  Push push;
  std::iota(pages.begin(), pages.end(), 0u);
  const uint32_t* const device_pages = gpu_.Upload(pages);
  std::vector<device::PushTarget> targets;
  push.indices.resize(size_t{kMaxBudget} * num_lists);
  std::vector<uint32_t> missing(push.indices.size());
  for (int list = 0; list < num_lists; ++list) {
    targets.push_back({ends_.link->region(kSlots), device_pages + list * (kPoolSlots / kSlotPageTokens), 0});
    const auto positions = RandomPositions(gpu_, rows_per_list, kPositions);
    auto slots = RandomPositions(gpu_, rows_per_list, kPoolSlots);
    std::shuffle(slots.begin(), slots.end(), gpu_.random);
    std::copy(positions.begin(), positions.end(), missing.begin() + size_t{kMaxBudget} * list);
    std::copy(slots.begin(), slots.end(), push.indices.begin() + size_t{kMaxBudget} * list);
    for (const uint32_t position : positions) push.rows.push_back(lists.Row(list, position));
    for (const uint32_t slot : slots) push.slots.push_back(list * kPoolSlots + slot);
  }
  push.params = {.lists = lists.device_lists,
                 .blocks = lists.device_blocks,
                 .row_pool = NewRandomBytes(gpu_, lists.num_rows() * kRowBytes),
                 .row_bytes = kRowBytes,
                 .targets = gpu_.Upload(targets),
                 .missing = gpu_.Upload(missing),
                 .missing_indices = gpu_.Upload(push.indices),
                 .missing_counts = gpu_.Upload(std::vector<uint32_t>(num_lists, rows_per_list)),
                 .num_lists = num_lists,
                 .max_budget = kMaxBudget,
                 .raise = {peer_flag(), numbers_ + 1},
                 .done_ctas = gpu_.NewZeroed<uint32_t>(1),
                 .max_ctas = max_ctas};
  if (with_selection) {
    device::PushParams& p = push.params;
    p.pool_indices = p.missing_indices;
    p.counts = gpu_.Upload(std::vector<uint32_t>(num_lists, kMaxBudget));
    p.peer_pool_indices = static_cast<uint32_t*>(ends_.link->region(kIndices));
    p.peer_counts = static_cast<uint32_t*>(ends_.link->region(kCounts));
  }
  return push;
}

// Rows, selections and counts are there as soon as the flag is.
void LinkBench::CheckPush() {
  constexpr int kLists = 8;
  constexpr uint32_t kRows = 300;
  gpu_.device.FillAsync(own_flag(), 0, 4, gpu_.stream);
  Check(gpu_.device.Synchronize(gpu_.stream));
  process_.socket.Barrier();
  if (!is_receiver()) {
    const Push push = MakePush(kLists, kRows, true, 0);
    gpu_.table.cache->push(gpu_.stream, push.params);
    const std::vector<uint8_t> pool =
        gpu_.Download(static_cast<const uint8_t*>(push.params.row_pool), size_t{kLists} * kPositions * kRowBytes);
    std::string rows, slots(reinterpret_cast<const char*>(push.slots.data()), push.slots.size() * 4),
        indices(reinterpret_cast<const char*>(push.indices.data()), push.indices.size() * 4);
    for (const size_t row : push.rows) rows.append(reinterpret_cast<const char*>(&pool[row * kRowBytes]), kRowBytes);
    for (const std::string& mine : {slots, rows, indices}) process_.socket.Exchange(mine);
    gpu_.FreeAll();
    return;
  }
  gpu_.table.cache->wait(gpu_.stream, WaitFor(1));
  const auto got_slots =
      gpu_.Download(static_cast<const char*>(ends_.exposed[kSlots]->data()), size_t{kLists} * kPoolSlots * kRowBytes);
  const auto got_indices =
      gpu_.Download(static_cast<const char*>(ends_.exposed[kIndices]->data()), size_t{kLists} * kMaxBudget * 4);
  const auto got_counts = gpu_.Download(static_cast<const uint32_t*>(ends_.exposed[kCounts]->data()), kLists);
  Check(ends_.link->status());
  const std::string slots = process_.socket.Exchange(""), rows = process_.socket.Exchange(""),
                    indices = process_.socket.Exchange("");
  double wrong = 0;
  for (size_t i = 0; i < size_t{kLists} * kRows; ++i) {
    uint32_t slot;
    std::memcpy(&slot, slots.data() + 4 * i, 4);
    wrong += std::memcmp(&got_slots[slot * kRowBytes], &rows[i * kRowBytes], kRowBytes) != 0;
  }
  gpu_.report.Check("pushed rows", wrong, 0);
  gpu_.report.Check("pushed selections", !std::equal(got_indices.begin(), got_indices.end(), indices.begin()), 0);
  gpu_.report.Check("pushed counts", got_counts != std::vector<uint32_t>(kLists, kMaxBudget), 0);
}

void LinkBench::Pushes() {
  struct Shape {
    const char* name;
    int num_lists;
    uint32_t rows_per_list;
    double goal_share;
  };
  for (const Shape& shape : {Shape{"push 4 MB, 8 lists", 8, 1024, 0.85},
                             {"push 4 MB, 64 lists", 64, 128, 0.85},
                             {"push 16 MB, 64 lists", 64, 512, 0},
                             {"push 32 MB, 64 lists", 64, 1024, 0.9}}) {
    for (const int max_ctas : {0, 64, 264}) {
      if (!is_receiver()) {
        const device::PushParams p = MakePush(shape.num_lists, shape.rows_per_list, false, max_ctas).params;
        const double bytes = static_cast<double>(shape.num_lists) * shape.rows_per_list * kRowBytes;
        const double us = gpu_.MedianUs(
            1, 20, [&](device::Stream stream, int) { gpu_.table.cache->push(stream, p); }, 9);
        gpu_.report.Time(std::string(shape.name) + ", " + std::to_string(max_ctas) + " CTAs", us,
                         bytes / kLinkBytesPerUs,
                         shape.goal_share > 0 ? bytes / kLinkBytesPerUs / shape.goal_share : 0);
        gpu_.FreeAll();
        Check(gpu_.device.Synchronize(gpu_.stream));
      }
      process_.socket.Barrier();
    }
  }
}

// Two pushes at a time on two streams, as those of two layers or batches are: one starts while the other ends.
void LinkBench::PushesSideBySide() {
  constexpr int kPushes = 200;
  for (const uint32_t rows_per_list : {128u, 1024u}) {
    if (!is_receiver()) {
      const device::Stream streams[2] = {gpu_.stream, gpu_.device.NewStream()};
      std::unique_ptr<device::Graph> graphs[2];
      for (int i = 0; i < 2; ++i) {
        device::PushParams p = MakePush(kMaxLists, rows_per_list, false, 132).params;
        p.raise.flag += i;
        auto graph = gpu_.device.Capture(streams[i], [&](device::Stream stream) {
          for (int push = 0; push < kPushes; ++push) gpu_.table.cache->push(stream, p);
        });
        Check(graph.status());
        graphs[i] = *std::move(graph);
      }
      double best_us = 1e9;
      for (int replay = 0; replay < 5; ++replay) {
        const Clock::time_point start = Clock::now();
        for (int i = 0; i < 2; ++i) graphs[i]->Launch(streams[i]);
        for (const device::Stream stream : streams) Check(gpu_.device.Synchronize(stream));
        best_us = std::min(best_us, std::chrono::duration<double, std::micro>(Clock::now() - start).count());
      }
      const double bytes = static_cast<double>(kMaxLists) * rows_per_list * kRowBytes;
      gpu_.report.Time("push " + std::to_string(static_cast<int>(bytes / 1e6)) + " MB, two at a time, each",
                       best_us / (2 * kPushes), bytes / kLinkBytesPerUs, bytes / kLinkBytesPerUs / 0.9);
      gpu_.FreeAll();
    }
    process_.socket.Barrier();
  }
}

// Per layer: the receiver asks (a flag), the sender pushes 50 rows of each of 8 lists, the selections and a flag, and
// the receiver waits for it. Against the same with a flag alone, whose half is what the asking costs.
void LinkBench::SmallDelta() {
  const int layers = ends_.one_gpu ? 3 : 400;
  double bare_us = 0;
  for (const int ctas : {-1000, 0, 264, 132, 64, 32}) {
    device::PushParams p;
    if (!is_receiver() && ctas > -1000) p = MakePush(8, 50, true, ctas).params;
    const double us = ReplayUs(
        [&](device::Stream stream) {
          for (int layer = 1; layer <= layers; ++layer) {
            const device::RaiseParams raise = {peer_flag(), numbers_ + layer};
            if (is_receiver()) gpu_.table.cache->raise(stream, raise);
            gpu_.table.cache->wait(stream, WaitFor(layer));
            if (is_receiver()) continue;
            p.raise = raise;
            if (ctas == -1000) {
              gpu_.table.cache->raise(stream, raise);
            } else {
              gpu_.table.cache->push(stream, p);
            }
          }
        },
        5);
    if (!is_receiver()) continue;
    if (ctas == -1000) {
      bare_us = us / layers;
    } else {
      gpu_.report.Time("8 x 50 rows, slots assigned to rows usable, " + std::to_string(ctas) + " CTAs",
                       us / layers - bare_us / 2, 0, 10);
    }
  }
}

void LinkBench::Run() {
  if (ends_.one_gpu) gpu_.report.Note("one GPU", "both processes use it in turns: no time means anything");
  CheckPush();
  FlagRoundTrip();
  SmallDelta();
  if (ends_.one_gpu) return;
  Pushes();
  PushesSideBySide();
}

}  // namespace winnow
