// A cache rank's GPU against the CPU backend: queries, selections and deltas of whole plans, step by step.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/selection/attended_set.h"
#include "tools/bench/gpu/checks/batch_selector_check.h"
#include "tools/bench/gpu/checks/cache_gpu_reference.h"
#include "tools/bench/gpu/checks/digest_check.h"
#include "tools/bench/gpu/checks/select_graph_check.h"
#include "tools/bench/gpu/device_selection_bench.h"
#include "tools/bench/gpu/device_selection_cases.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

using Kind = SelectAction::Kind;

// Counts what a case finds, and reports it once.
class CaseReport {
 public:
  CaseReport(GpuContext& gpu, std::string name) : gpu_(gpu), name_(std::move(name)) {}
  void Wrong(const std::string& what) {
    if (first_wrong_.empty()) first_wrong_ = what;
    ++wrong_;
  }
  // NaN: not measured.
  void Mass(double mass, const CacheGpuReference::Mass& wanted) {
    if (std::isnan(mass) != std::isnan(wanted.mass)) return Wrong(absl::StrCat("a captured mass of ", mass));
    if (std::isnan(mass)) return;
    worst_mass_ = std::max(worst_mass_, std::abs(mass - wanted.mass) / wanted.tolerance);
    ++masses_;
  }
  void Query(double error, double tolerance) { worst_query_ = std::max(worst_query_, error / tolerance); }
  void Differs(size_t rows, size_t of) {
    differing_ += rows;
    compared_ += of;
  }
  ~CaseReport() {
    gpu_.report.Check(name_ + ": queries, of what they may err by", worst_query_, 1);
    if (masses_ > 0) gpu_.report.Check(name_ + ": captured masses, of what they may err by", worst_mass_, 1);
    if (masses_ == 0) gpu_.report.Fail(name_, "no captured mass was measured");
    if (wrong_ > 0) {
      gpu_.report.Fail(name_, absl::StrCat(wrong_, " wrong, the first: ", first_wrong_));
    } else {
      gpu_.report.Check(name_ + ": selections and deltas", 0, 0);
    }
    gpu_.report.Note(name_, absl::StrCat(differing_, " of ", compared_, " rows differ from the CPU backend's"));
  }

 private:
  GpuContext& gpu_;
  const std::string name_;
  std::string first_wrong_;
  int wrong_ = 0;
  double worst_query_ = 0, worst_mass_ = 0;
  int masses_ = 0;
  size_t differing_ = 0, compared_ = 0;
};

size_t NumNotIn(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  return static_cast<size_t>(
      std::count_if(a.begin(), a.end(), [&](uint32_t x) { return !std::binary_search(b.begin(), b.end(), x); }));
}

// Runs a CacheGpu action by action and looks at what each leaves.
class SteppedPlans {
 public:
  SteppedPlans(GpuContext& gpu, const CacheGpu::Options& options, const std::string& name)
      : gpu_(gpu), cache_(gpu, options), reference_(cache_, *CpuKernels().value()), report_(gpu, name) {}

  void Run() {
    for (int plan = 0; plan < cache_.options().num_plans; ++plan) {
      for (int layer = 0; layer < cache_.layout().num_layers; ++layer) {
        cache_.SendHidden(gpu_.stream, plan, layer);
        cache_.SendRows(gpu_.stream, plan, layer);
      }
      cache_.RaiseAll(gpu_.stream, cache_.plan->next_plan());
      const PlanBucket bucket = cache_.graph->NextBucket();
      cache_.plan->EnqueueBegin(gpu_.stream, bucket.num_rows);
      for (const SelectAction& action : cache_.graph->order()) {
        cache_.graph->EnqueueAction(gpu_.stream, bucket, action);
        if (action.kind <= Kind::kQueriesFromPast && action.kind >= Kind::kQueriesOfOwn) CheckQueries(plan, action);
        if (action.kind == Kind::kSelect) CheckSelections(plan, action.layer);
        if (action.kind == Kind::kPush) CheckDelta(action.layer);
        if (action.kind == Kind::kSelect) settled_[action.layer] |= 1;
        if (action.kind == Kind::kAppend) settled_[action.layer] |= 2;
        if (settled_[action.layer] == 3) CheckMasses(plan, bucket, action.layer);
      }
      CheckDigests(plan, bucket);
      cache_.plan->Advance();
      reference_.EndPlan(plan);
    }
    if (cache_.graph->error() != 0) report_.Wrong("a wait ended with an error");
  }

 private:
  size_t group_floats() const { return static_cast<size_t>(cache_.layout().group_size()) * cache_.layout().head_dim; }

  void CheckMasses(int plan, const PlanBucket& bucket, int layer) {
    settled_[layer] = 0;
    cache_.selection->EnqueueRealQueries(gpu_.stream, bucket, layer, cache_.inbox);
    cache_.selection->EnqueueMass(gpu_.stream, bucket, layer, cache_.peer);
    const size_t heads = cache_.layout().num_kv_heads, lists = cache_.exchange.lists_per_layer();
    const size_t first = layer * lists, number = cache_.plan->next_plan();
    const auto masses = gpu_.Download(cache_.selection->masses() + first, lists);
    const auto told = gpu_.Download(cache_.peer.masses + number % 2 * cache_.exchange.masses_per_plan() + first, lists);
    for (size_t entry = 0; entry < lists; ++entry) {
      const int row = static_cast<int>(entry / heads);
      if (!cache_.sits(row)) {
        if (told[entry].plan == number) report_.Wrong("the peer is told of a captured mass where nobody sits");
        continue;
      }
      if (masses[entry].plan != number || told[entry].plan != number) report_.Wrong("a captured mass of another plan");
      // By their bits: what was not measured is NaN.
      if (std::bit_cast<uint64_t>(masses[entry]) != std::bit_cast<uint64_t>(told[entry])) {
        report_.Wrong("the peer is told of another captured mass");
      }
      const size_t list = cache_.layout().list(layer, static_cast<int>(entry % heads));
      report_.Mass(masses[entry].mass, reference_.MassOf(plan, row, list, selected_of_[layer][entry]));
    }
  }

  // Of the plan's layer, against rows as the host knows them.
  void CheckDigests(int plan, const PlanBucket& bucket) {
    const uint32_t number = cache_.plan->next_plan();
    const int layer = static_cast<int>(number % cache_.layout().num_layers), heads = cache_.layout().num_kv_heads;
    const size_t lists = cache_.exchange.lists_per_layer();
    cache_.selection->EnqueueDigest(gpu_.stream, bucket, cache_.peer);
    const auto digests = gpu_.Download(cache_.peer.digests + number % 2 * lists, lists);
    const std::vector<uint32_t> indices = cache_.PeerPoolIndices(layer);
    for (size_t entry = 0; entry < lists; ++entry) {
      const int row = static_cast<int>(entry) / heads;
      if (!cache_.sits(row)) continue;
      const size_t list = cache_.layout().list(layer, static_cast<int>(entry) % heads);
      const uint32_t position = cache_.position(row, plan), sinks = cache_.spec().sink_tokens;
      uint64_t sum = 0;
      const auto add = [&](uint32_t at, uint64_t key) {
        uint64_t of_row = 0;
        for (int word = 0; word < cache_.layout().head_dim / 2; ++word) {
          uint64_t bits;
          std::memcpy(&bits, cache_.Row(row, list, at) + 4 * word, sizeof bits);
          of_row += bits * device::DigestFactor(word);
        }
        sum += of_row * device::DigestFactor(~key);
      };
      const std::vector<uint32_t>& selected = selected_of_[layer][entry];
      for (size_t i = 0; i < selected.size(); ++i) add(selected[i], indices[entry * cache_.plan->max_budget() + i]);
      for (uint32_t at = 0; at < std::min(sinks, position + 1); ++at) add(at, device::kSinkKey + at);
      for (uint32_t at = WindowStart(cache_.spec(), position, 0); at <= position; ++at)
        add(at, device::kRecentKey + at);
      if (digests[entry].plan != number || digests[entry].digest != sum) {
        report_.Wrong(absl::StrCat("the digest of plan ", plan, " row ", row, " list ", list));
      }
    }
  }

  void CheckQueries(int plan, const SelectAction& action) {
    const size_t floats = group_floats() * cache_.layout().num_kv_heads;
    queries_ = gpu_.Download(cache_.selection->queries(action.layer), floats * cache_.max_rows());
    for (int row = 0; row < cache_.max_rows(); ++row) {
      if (!cache_.sits(row)) continue;
      const std::vector<float> expected = reference_.Queries(plan, action, row);
      double error = 0;
      for (size_t i = 0; i < floats; ++i) {
        const double e = std::abs(double{queries_[row * floats + i]} - expected[i]);
        error = e <= error ? error : e;  // keeps NaN
      }
      report_.Query(error, reference_.QueryTolerance(plan, action, row));
    }
  }

  void CheckSelections(int plan, int layer) {
    FindSelections(plan, layer);
    selected_of_[layer] = selected_;
  }

  void FindSelections(int plan, int layer) {
    const int heads = cache_.layout().num_kv_heads;
    const size_t max_budget = cache_.plan->max_budget(), lists = static_cast<size_t>(cache_.max_rows()) * heads;
    const std::vector<uint32_t> rows = gpu_.Download(cache_.selection->selected(), lists * max_budget);
    const std::vector<uint32_t> counts = gpu_.Download(cache_.selection->counts(layer), lists);
    selected_.assign(lists, {});
    for (size_t entry = 0; entry < lists; ++entry) {
      const int row = static_cast<int>(entry) / heads;
      if (!cache_.sits(row)) {
        if (counts[entry] != 0) report_.Wrong("rows are selected where nobody sits");
        continue;
      }
      if (counts[entry] > max_budget) return report_.Wrong(absl::StrCat(counts[entry], " rows"));
      selected_[entry].assign(rows.begin() + static_cast<int64_t>(entry * max_budget),
                              rows.begin() + static_cast<int64_t>(entry * max_budget + counts[entry]));
      const size_t list = cache_.layout().list(layer, static_cast<int>(entry) % heads);
      const float* queries = queries_.data() + entry * group_floats();
      const std::string where = absl::StrCat("plan ", plan, " row ", row, " list ", list, ": ");
      if (const std::string wrong = reference_.CheckSelection(plan, row, list, queries, selected_[entry]);
          !wrong.empty()) {
        report_.Wrong(where + wrong);
      }
      const std::vector<uint32_t> cpu = reference_.Select(plan, row, list, queries);
      if (const std::string wrong =
              reference_.CheckSelection(plan, row, list, queries, cpu, CacheGpuReference::Selector::kCpu);
          !wrong.empty()) {
        report_.Wrong(absl::StrCat(where, "of the CPU backend ", wrong));
      }
      report_.Differs(NumNotIn(selected_[entry], cpu), cpu.size());
    }
  }

  // The inference rank finds the selected rows, in position order, where its pool indices say.
  void CheckDelta(int layer) {
    const int heads = cache_.layout().num_kv_heads;
    const std::vector<std::vector<uint32_t>>& selected = selected_of_[layer];
    const std::vector<device::AttentionList> lists = cache_.PeerLists(layer);
    const std::vector<uint32_t> indices = cache_.PeerPoolIndices(layer);
    const std::vector<uint16_t> slots = cache_.PeerSlots();
    const size_t elements = 2 * static_cast<size_t>(cache_.layout().head_dim);
    const uint32_t flag = gpu_.Download(cache_.peer.delta_flags + layer, 1)[0];
    if (flag != cache_.plan->next_plan()) report_.Wrong(absl::StrCat("the delta's flag is ", flag));
    for (size_t entry = 0; entry < selected.size(); ++entry) {
      const int row = static_cast<int>(entry) / heads;
      if (!cache_.sits(row)) {  // somebody else's, for all that is known: it is left as it was, poisoned
        if (lists[entry].selected_count != ~0u) report_.Wrong("the peer is told of rows where nobody sits");
        continue;
      }
      const size_t list = cache_.layout().list(layer, static_cast<int>(entry) % heads);
      if (lists[entry].selected_count != selected[entry].size()) {
        report_.Wrong(absl::StrCat("the peer is told of ", lists[entry].selected_count, " rows"));
        continue;
      }
      for (size_t i = 0; i < selected[entry].size(); ++i) {
        const uint32_t index = indices[entry * cache_.plan->max_budget() + i];
        if (index >= cache_.store->shape().pool_slots) {
          report_.Wrong(absl::StrCat("pool index ", index));
          break;
        }
        const uint16_t* slot = slots.data() + cache_.Slot(row, list, index) * elements;
        if (!std::equal(slot, slot + elements, cache_.Row(row, list, selected[entry][i]))) {
          report_.Wrong(absl::StrCat("pool index ", index, " does not hold row ", selected[entry][i]));
          break;
        }
      }
    }
  }

  GpuContext& gpu_;
  CacheGpu cache_;
  CacheGpuReference reference_;
  CaseReport report_;
  std::vector<float> queries_;
  std::vector<std::vector<uint32_t>> selected_;                    // [max_rows * num_kv_heads] of the layer at hand
  std::map<int, std::vector<std::vector<uint32_t>>> selected_of_;  // [layer] the same
  std::map<int, int> settled_;                                     // [layer] selected for: 1, appended to: 2
};

void CheckStepped(GpuContext& gpu, const std::string& name, const CacheGpu::Options& options) {
  SteppedPlans(gpu, options, name).Run();
  gpu.FreeAll();
}

void CheckPresets(GpuContext& gpu) {
  CheckStepped(gpu, "async-token", Case(Preset("async-token"), gpu.random()));
  CheckStepped(gpu, "winnow", Case(Preset("winnow", 512), gpu.random()));
  CheckStepped(gpu, "exact-token", Case(Preset("exact-token"), gpu.random()));
  CheckStepped(gpu, "quest", Case(Preset("quest"), gpu.random()));
  CheckStepped(gpu, "sparseserve", Case(Preset("sparseserve"), gpu.random()));
  CacheGpu::Options dram = Case(Preset("sparseserve"), gpu.random());
  dram.rows = RowTier::kPinnedHost;
  CheckStepped(gpu, "sparseserve, rows in DRAM", dram);
  SelectionSpec spec = Preset("depth");
  spec.lookahead = 2;
  spec.scorer = Scorer::kTwoStage;
  spec.candidate_factor = 3;
  spec.min_candidate_tokens = 0;
  CheckStepped(gpu, "depth 2, two-stage", Case(spec, gpu.random()));
}

// Sequences of one launch on both sides of where the second stage sets in: of the first two one of them before it, one
// behind it, of the third every plan crosses it, the last has all of its keys scored.
void CheckThreshold(GpuContext& gpu, const char* name, SelectionSpec spec, uint32_t threshold) {
  spec.score_all_below_tokens = threshold;
  CacheGpu::Options options = Case(spec, gpu.random());
  options.layout.num_layers = 2;
  // Selectable are the complete blocks below the recent window, but for the sinks: as many as the threshold has rows,
  // and more from there on.
  const uint32_t crossing =
      (threshold + spec.sink_tokens + kBlockTokens - 1) / kBlockTokens * kBlockTokens + spec.recent_tokens - 1;
  options.positions = {crossing - 40, crossing + 700, crossing - 1, device::kNoPosition, crossing / 2};
  CheckStepped(gpu, name, options);
  options.positions = {crossing, crossing + 700};
  CheckStepped(gpu, absl::StrCat(name, ", all above"), options);
}

void CheckThresholds(GpuContext& gpu) {
  SelectionSpec spec = Preset("winnow", 256);
  CheckThreshold(gpu, "winnow, around 16k", spec, 16384);
  spec.min_candidate_tokens = 512;
  CheckThreshold(gpu, "winnow, around 1,500, few candidates", spec, 1500);
  spec.candidate_factor = 1;
  spec.min_candidate_tokens = 0;
  spec.head_budgets = {256, 60, 17, 200};
  CheckThreshold(gpu, "winnow, around 700, budgets by head", spec, 700);
  spec.head_budgets.clear();
  spec.policy = Policy::kTopK;
  spec.key_copy = KeyCopy::kNone;
  CheckThreshold(gpu, "winnow, around 700, top-k in bf16", spec, 700);
}

void CheckVariants(GpuContext& gpu) {
  for (const auto& [variant, name] :
       {std::pair{TemporalVariant::kRidge, "ridge"}, {TemporalVariant::kClipped, "clipped"}}) {
    SelectionSpec spec = Preset("async-token");
    spec.temporal_variant = variant;
    spec.post_rope = false;
    spec.window = variant == TemporalVariant::kRidge ? 16 : 32;
    CheckStepped(gpu, absl::StrCat("temporal, ", name, ", before RoPE"), Case(spec, gpu.random()));
  }
  for (const auto& [aggregation, name] :
       {std::pair{GroupAggregation::kMax, "max"}, {GroupAggregation::kMean, "mean"}}) {
    SelectionSpec spec = Preset("exact-token");
    spec.predictor = Predictor::kLast;
    spec.group_aggregation = aggregation;
    CheckStepped(gpu, absl::StrCat("last, ", name), Case(spec, gpu.random()));
  }
  for (const auto& [head_dim, query_heads] : {std::pair{64, 16}, {256, 2}}) {
    CacheGpu::Options options = Case(Preset("winnow", 512), gpu.random());
    options.layout.head_dim = head_dim;
    options.layout.num_query_heads = query_heads;
    CheckStepped(gpu, absl::StrCat("winnow, head_dim ", head_dim), options);
  }
  CacheGpu::Options dram = Case(Preset("winnow", 512), gpu.random());
  dram.rows = RowTier::kPinnedHost;
  CheckStepped(gpu, "winnow, rows in DRAM", dram);
}

void Check(GpuContext& gpu) {
  CheckPresets(gpu);
  CheckThresholds(gpu);
  if (!gpu.few_small) CheckVariants(gpu);
  CheckSelectGraphs(gpu);
  CheckAttendedDigests(gpu);
  CheckBatchSelector(gpu);
}

}  // namespace

GpuSection DeviceSelectionSection() {
  return {"device_selection", Check, BenchDeviceSelection};
}

}  // namespace winnow
