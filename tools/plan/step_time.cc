#include "tools/plan/step_time.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace winnow {
namespace {

// Of GPUs, as measured on H200s (docs/benchmarks.md): the share of the datasheet's bandwidth that a step's kernels
// reach, the gaps between the kernels of a layer, one sum over GPUs that share a model, and the share of the rate of
// plain products that a prompt reaches. A host's rates are measured with the kernels that use them.
constexpr double kGpuReadShare = 0.92;
constexpr double kGpuLayerSeconds = 27e-6;
constexpr double kSumSeconds = 8e-6;
constexpr int kSumsPerLayer = 2;
constexpr double kPromptShare = 0.83;
// At which rows of a cached prefix come back.
constexpr double kGpuPrefixBytesPerSecond = 8e9, kHostPrefixBytesPerSecond = 3e9;

std::string Bytes(double bytes) {
  return bytes < 1e8 ? absl::StrFormat("%.2f MB", bytes / 1e6) : absl::StrFormat("%.2f GB", bytes / 1e9);
}

}  // namespace

StepTime EstimateStep(const PlanModel& model, const StepPlacement& placement, const PlanWorkload& load, double batch) {
  const bool selects = placement.selected_by != SelectedBy::kNobody;
  const double devices = placement.devices;
  const double attended = AttendedTokens(
      model, selects ? std::min(load.budget_tokens, load.context_tokens) : load.context_tokens, load.context_tokens);
  const double scored = selects ? ScoredBytes(model, placement.scorer, load) : 0;
  const double attended_bytes = batch * attended * model.kv_token_bytes;
  const bool in_place = placement.selected_by == SelectedBy::kInPlace;
  const double read = StepWeightBytes(model, batch) + attended_bytes + (in_place ? batch * scored : 0);
  const double flops = batch * (2 * model.step_parameters + model.attention_flops * attended);
  const double read_share = placement.on_gpu ? kGpuReadShare : 1;
  const double gaps = placement.on_gpu ? model.num_layers * kGpuLayerSeconds : 0;
  const double flops_s = flops / devices / placement.compute.flops_per_s;
  const double read_s = read / devices / placement.compute.memory_bytes_per_s;
  StepTime time;
  time.floor_s = std::max(read_s, flops_s);
  time.compute_s = std::max(read_s / read_share, flops_s) + gaps;
  absl::StrAppend(&time.arithmetic,
                  absl::StrFormat("step: (%s weights + %.0f x %s attended%s)%s / %.4g TB/s = %.2f ms at least",
                                  Bytes(StepWeightBytes(model, batch)), batch, Bytes(attended * model.kv_token_bytes),
                                  in_place && scored > 0 ? absl::StrCat(" and ", Bytes(scored), " scored") : "",
                                  devices > 1 ? absl::StrFormat(" / %.0f GPUs", devices) : "",
                                  placement.compute.memory_bytes_per_s / 1e12, time.floor_s * 1e3),
                  flops_s > read_s ? ", bound by arithmetic" : "");
  if (placement.on_gpu) {
    absl::StrAppend(&time.arithmetic, absl::StrFormat("; at %.2f of that rate and %.0f us between the kernels of a "
                                                      "layer %.2f ms",
                                                      read_share, kGpuLayerSeconds * 1e6, time.compute_s * 1e3));
  }
  time.arithmetic += '\n';
  if (placement.devices > 1) {
    const double bytes = batch * model.hidden_size * sizeof(float) * (devices - 1);
    const double sums = static_cast<double>(kSumsPerLayer) * model.num_layers;
    time.all_reduce_s = sums * (kSumSeconds + bytes / placement.compute.link_bytes_per_s);
    absl::StrAppend(&time.arithmetic,
                    absl::StrFormat("sums: %.0f x (%.0f us + %s over %.0f GB/s) = %.2f ms\n", sums, kSumSeconds * 1e6,
                                    Bytes(bytes), placement.compute.link_bytes_per_s / 1e9, time.all_reduce_s * 1e3));
  }
  const double own_s = time.compute_s + time.all_reduce_s;
  time.expected_s = own_s;
  if (!selects) return time;
  if (in_place) {
    time.select_s = model.num_layers * kInPlaceLayerSeconds;
    time.expected_s += time.select_s;
    absl::StrAppend(&time.arithmetic, absl::StrFormat("selection: %d layers x %.0f us = %.2f ms\n", model.num_layers,
                                                      kInPlaceLayerSeconds * 1e6, time.select_s * 1e3));
    return time;
  }
  const bool on_gpus = placement.selected_by == SelectedBy::kCacheGpus;
  time.select_s =
      batch * scored / placement.cache_devices / placement.cache.memory_bytes_per_s / (on_gpus ? kGpuReadShare : 1) +
      (on_gpus ? model.num_layers * kInPlaceLayerSeconds : 0);
  const double link = on_gpus ? placement.compute.link_bytes_per_s : placement.cache.link_bytes_per_s;
  time.transfer_s = batch * TransferBytes(model, load) / devices / link;
  // CPUs that compute and select read from one memory.
  const bool shares_memory = !placement.on_gpu && placement.selected_by == SelectedBy::kCacheHost;
  time.expected_s = placement.waits_for_query || shares_memory ? own_s + time.select_s + time.transfer_s
                                                               : std::max({own_s, time.select_s, time.transfer_s});
  absl::StrAppend(
      &time.arithmetic,
      absl::StrFormat("selection: %.0f x %s of keys / %d %s = %.2f ms; rows: %.0f x %s = %.2f ms; %s\n", batch,
                      Bytes(scored), placement.cache_devices, on_gpus ? "cache GPUs" : "hosts", time.select_s * 1e3,
                      batch, Bytes(TransferBytes(model, load)), time.transfer_s * 1e3,
                      shares_memory               ? "CPUs that compute and select share the memory's rate"
                      : placement.waits_for_query ? "layers wait for both"
                                                  : "both hide behind the layers, as far as they are shorter"));
  return time;
}

FirstToken EstimateFirstToken(const PlanModel& model, const StepPlacement& placement, const PlanWorkload& load,
                              double cached_tokens, double chunk_tokens, double batch) {
  const double cached = std::min(cached_tokens, load.context_tokens - 1), fresh = load.context_tokens - cached;
  const double pairs = (load.context_tokens * load.context_tokens - cached * cached) / 2;
  const double flops = 2 * model.step_parameters * fresh + model.attention_flops * pairs;
  const double share = placement.on_gpu ? kPromptShare : 1;
  const double compute_s = flops / placement.devices / placement.compute.flops_per_s / share;
  const double chunks = std::ceil(fresh / chunk_tokens);
  const double read_s =
      chunks * StepWeightBytes(model, chunk_tokens) / placement.devices / placement.compute.memory_bytes_per_s;
  const double prefix_rate = placement.on_gpu ? kGpuPrefixBytesPerSecond : kHostPrefixBytesPerSecond;
  const double prefix_s = cached * model.kv_token_bytes / prefix_rate;
  FirstToken first;
  const double prompt_s = std::max(compute_s, read_s) + prefix_s;
  const StepTime alone = EstimateStep(model, placement, load, 1);
  first.alone_s = prompt_s + alone.expected_s;
  // A chunk shares its iteration with the rows of those that decode already: half of them in the mean.
  const double step_s = batch > 1 ? EstimateStep(model, placement, load, batch / 2).expected_s : 0;
  first.last_of_batch_s = first.alone_s + (batch > 1 ? (batch - 1) * (prompt_s + chunks * step_s) : 0);
  first.arithmetic = absl::StrFormat(
      "first token: %.3g TFLOP of %.0f tokens%s / %.4g TFLOP/s%s = %s%s; all of %.0f at once: %s for the last\n",
      flops / 1e12, fresh, placement.devices > 1 ? absl::StrFormat(" / %d GPUs", placement.devices) : "",
      placement.compute.flops_per_s * share / 1e12,
      read_s > compute_s ? absl::StrFormat(", or %.0f chunks that read the weights", chunks) : "",
      absl::StrFormat("%.3g s", std::max(compute_s, read_s)),
      cached > 0 ? absl::StrFormat(" + %s of cached rows / %.0f GB/s = %.3g s", Bytes(cached * model.kv_token_bytes),
                                   prefix_rate / 1e9, first.alone_s)
                 : "",
      batch, absl::StrFormat("%.3g s", first.last_of_batch_s));
  return first;
}

}  // namespace winnow
