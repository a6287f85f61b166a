#include "tools/bench/gpu/checks/assign_slots_model.h"
#include "tools/bench/gpu/checks/cache_checks.h"
#include "tools/bench/gpu/checks/cache_fixture.h"

namespace winnow {
namespace {

constexpr uint32_t kMaxPositions = 20000;

struct Case {
  const char* name;
  std::vector<uint32_t> pool_slots;  // of each list
  uint32_t max_budget;
  uint32_t max_pool_slots;
  uint32_t first_plan;
};

// Plans of drifting selections, ragged: some lists select nothing, some as much as their pool holds.
void CheckPlans(GpuContext& gpu, const Case& c) {
  const int num_lists = static_cast<int>(c.pool_slots.size());
  std::vector<AssignSlotsModel> models;
  std::vector<device::ResidencyList> residency;
  for (const uint32_t slots : c.pool_slots) {
    models.emplace_back(slots, kMaxPositions);
    residency.push_back({.position_of = gpu.Upload(models.back().position_of),
                         .last_plan = gpu.Upload(models.back().last_plan),
                         .pool_slots = slots});
  }
  const size_t entries = static_cast<size_t>(num_lists) * c.max_budget;
  uint32_t* const selected = gpu.New<uint32_t>(entries);
  uint32_t* const counts = gpu.New<uint32_t>(num_lists);
  uint32_t* const plan_word = gpu.New<uint32_t>(1);
  device::AssignSlotsParams p{.residency = gpu.Upload(residency),
                              .selected = selected,
                              .counts = counts,
                              .num_lists = num_lists,
                              .max_budget = c.max_budget,
                              .max_pool_slots = c.max_pool_slots,
                              .max_positions = kMaxPositions,
                              .plan = 0,
                              .plan_ptr = plan_word,
                              .pool_indices = gpu.New<uint32_t>(entries),
                              .missing = gpu.New<uint32_t>(entries),
                              .missing_indices = gpu.New<uint32_t>(entries),
                              .missing_counts = gpu.New<uint32_t>(num_lists)};

  double wrong_outputs = 0, wrong_residency = 0;
  uint32_t plan = c.first_plan;
  std::vector<std::vector<uint32_t>> selections(num_lists);
  for (int step = 0; step < gpu.Size(40, 3); ++step) {
    // Most plans follow each other closely; some come long after.
    plan += step % 13 == 7 ? 100000 : 1 + RandomBelow(gpu, 3);
    std::vector<uint32_t> host_selected(entries, 0xdeadbeef), host_counts;
    for (int list = 0; list < num_lists; ++list) {
      const uint32_t most = std::min(c.max_budget, c.pool_slots[list]);
      const uint32_t size = step % 9 == list % 9 ? most : step % 11 == list % 11 ? 0 : RandomBelow(gpu, most + 1);
      // Of the selection before about three quarters stay.
      std::vector<uint32_t>& selection = selections[list];
      std::erase_if(selection, [&](uint32_t) { return RandomBelow(gpu, 4) == 0; });
      for (const uint32_t position : RandomPositions(gpu, size, kMaxPositions)) selection.push_back(position);
      std::shuffle(selection.begin(), selection.end(), gpu.random);
      std::sort(selection.begin(), selection.end());
      selection.erase(std::unique(selection.begin(), selection.end()), selection.end());
      while (selection.size() > size) selection.erase(selection.begin() + RandomBelow(gpu, selection.size()));
      std::copy(selection.begin(), selection.end(), host_selected.begin() + list * size_t{c.max_budget});
      host_counts.push_back(selection.size());
    }
    gpu.device.CopyAsync(selected, host_selected.data(), entries * 4, gpu.stream);
    gpu.device.CopyAsync(counts, host_counts.data(), num_lists * 4, gpu.stream);
    gpu.device.CopyAsync(plan_word, &plan, 4, gpu.stream);
    for (uint32_t* out : {p.pool_indices, p.missing, p.missing_indices}) {
      gpu.device.FillAsync(out, 0xff, entries * 4, gpu.stream);
    }
    gpu.device.FillAsync(p.missing_counts, 0xff, num_lists * 4, gpu.stream);
    gpu.table.cache->assign_slots(gpu.stream, p);
    const auto pool_indices = gpu.Download(p.pool_indices, entries), missing = gpu.Download(p.missing, entries),
               missing_indices = gpu.Download(p.missing_indices, entries),
               missing_counts = gpu.Download(p.missing_counts, num_lists);
    for (int list = 0; list < num_lists; ++list) {
      AssignSlotsModel& model = models[list];
      model.Update(selections[list], plan);
      const auto same = [&](const std::vector<uint32_t>& whole, const std::vector<uint32_t>& wanted) {
        const auto begin = whole.begin() + list * size_t{c.max_budget};
        return std::equal(wanted.begin(), wanted.end(), begin) &&
               std::all_of(begin + wanted.size(), begin + c.max_budget, [](uint32_t word) { return word == ~0u; });
      };
      wrong_outputs += missing_counts[list] != model.missing.size() || !same(missing, model.missing) ||
                       !same(missing_indices, model.missing_indices) || !same(pool_indices, model.pool_indices);
    }
  }
  for (int list = 0; list < num_lists; ++list) {
    const AssignSlotsModel& model = models[list];
    wrong_residency += Differences(gpu.Download(residency[list].position_of, c.pool_slots[list]), model.position_of);
    wrong_residency += Differences(gpu.Download(residency[list].last_plan, c.pool_slots[list]), model.last_plan);
  }
  gpu.report.Check(std::string("slots of ") + c.name + ": lists with a wrong answer", wrong_outputs, 0);
  gpu.report.Check(std::string("slots of ") + c.name + ": wrong words of residency", wrong_residency, 0);
  gpu.FreeAll();
}

// Between lists with pools, one whose rows are read where they lie, and one that is nobody's.
void CheckListsInPlace(GpuContext& gpu) {
  constexpr int kLists = 4;
  constexpr uint32_t kBudget = 100, kCount = 70;
  const std::vector<uint32_t> free(kBudget, ~0u), never(kBudget, 0);
  std::vector<device::ResidencyList> residency(kLists);
  for (const int list : {0, 3}) {
    residency[list] = {.position_of = gpu.Upload(free), .last_plan = gpu.Upload(never), .pool_slots = kBudget};
  }
  std::vector<uint32_t> selected(kLists * kBudget);
  for (size_t i = 0; i < selected.size(); ++i) selected[i] = static_cast<uint32_t>(7 * i);
  device::AssignSlotsParams p{.residency = gpu.Upload(residency),
                              .list_positions = gpu.Upload(std::vector<uint32_t>{900, 900, device::kNoPosition, 900}),
                              .selected = gpu.Upload(selected),
                              .counts = gpu.Upload(std::vector<uint32_t>(kLists, kCount)),
                              .num_lists = kLists,
                              .max_budget = kBudget,
                              .max_pool_slots = 128,
                              .max_positions = kMaxPositions,
                              .plan = 3,
                              .pool_indices = gpu.New<uint32_t>(selected.size()),
                              .missing = gpu.New<uint32_t>(selected.size()),
                              .missing_indices = gpu.New<uint32_t>(selected.size()),
                              .missing_counts = gpu.New<uint32_t>(kLists)};
  gpu.device.FillAsync(p.pool_indices, 0xff, selected.size() * 4, gpu.stream);
  gpu.device.FillAsync(p.missing_counts, 0xff, kLists * 4, gpu.stream);
  gpu.table.cache->assign_slots(gpu.stream, p);
  const auto indices = gpu.Download(p.pool_indices, selected.size()), missing = gpu.Download(p.missing_counts, kLists);
  double wrong = missing != std::vector<uint32_t>{kCount, 0, 0, kCount};
  for (uint32_t i = 0; i < kCount; ++i) {
    wrong += indices[i] != i || indices[kBudget + i] != selected[kBudget + i] || indices[2 * kBudget + i] != ~0u;
  }
  gpu.report.Check("slots beside lists in place and of nobody: wrong words", wrong, 0);
  gpu.FreeAll();
}

}  // namespace

void CheckAssignSlots(GpuContext& gpu) {
  CheckListsInPlace(gpu);
  CheckPlans(gpu, {"one small pool", {37}, 37, 64, 1});
  CheckPlans(gpu, {"ragged small pools", {1, 2, 3, 64, 65, 127, 300, 1000, 4, 2}, 500, 1024, 5});
  CheckPlans(gpu, {"pools of one tile", {4096, 4095, 2048, 3001, 4096}, 2048, 4096, 0xffff0000});
  CheckPlans(gpu, {"pools of two tiles", {8192, 4100, 8000, 100}, 3000, 8192, 77});
  CheckPlans(gpu, {"pools read again", {16384, 9000, 12345, 31}, 5000, 16384, 77});
  std::vector<uint32_t> many;
  for (int i = 0; i < 300; ++i) many.push_back(1 + RandomBelow(gpu, 400));
  CheckPlans(gpu, {"many lists", many, 300, 512, 9});
  CheckPlans(gpu, {"small pools read again", {4096, 700}, 2048, 16384, 9});
}

}  // namespace winnow
