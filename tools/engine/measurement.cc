#include "tools/engine/measurement.h"

#include <algorithm>

#include "common/selection/spec_text.h"

namespace winnow {

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

nlohmann::ordered_json ToJson(const DecodeMeasurement& result) {
  const DecodeCase& of = result.of;
  nlohmann::ordered_json json = {{"mode", PlacementName(of.placement)},
                                 {"context_tokens", result.context_tokens},
                                 {"batch", of.batch},
                                 {"kv", DtypeName(of.kv)},
                                 {"tensor_parallel", result.num_ranks},
                                 {"gpus", result.num_gpus},
                                 {"step_us", result.step_us},
                                 {"floor_us", result.floor_us},
                                 {"floor_of", result.floor_of},
                                 {"weight_bytes_per_step", result.weight_bytes},
                                 {"attended_bytes_per_step", result.attended_bytes},
                                 {"scored_bytes_per_step", result.scored_bytes},
                                 {"over_floor", result.step_us / result.floor_us},
                                 {"tokens_per_second", result.tokens_per_second()},
                                 {"tokens_per_second_and_inference_gpu", result.tokens_per_second() / result.num_ranks},
                                 {"tokens_per_second_and_gpu", result.tokens_per_second() / result.num_gpus}};
  if (!of.preset.empty()) json["preset"] = of.preset;
  if (Selects(of.placement)) {
    json["selection"] = SpecText(of.spec);
    json["sequences_in_dram"] = of.dram_sequences;
    json["overlap"] = result.overlap;
    json["query_strength"] = result.query_strength;
    json["selected_rows"] = result.selected_rows;
    json["resident"] = result.resident;
    json["pushed_bytes_per_step"] = result.pushed_bytes;
  }
  if (result.touched_experts > 0) json["touched_experts"] = result.touched_experts;
  if (result.matrices_us > 0) {
    json["matrices_us"] = result.matrices_us;
    json["attention_us"] = result.attention_us;
    json["selection_us"] = result.selection_us;
    json["rest_us"] = result.rest_us;
  }
  for (const PartTime& part : result.parts) {
    json["parts"].push_back({{"part", part.name},
                             {"alone_us", part.alone_us},
                             {"left_out_us", part.marginal_us},
                             {"floor_us", part.floor_us}});
  }
  return json;
}

nlohmann::ordered_json ToJson(const PrefillMeasurement& result) {
  return {{"tokens", result.tokens},
          {"us", result.us},
          {"tokens_per_second", result.tokens * 1e6 / result.us},
          {"flops", result.flops},
          {"gemm_flops_per_us", result.gemm_flops_per_us},
          {"of_gemm_rate", result.flops / result.us / result.gemm_flops_per_us},
          {"until_saved_us", result.saved_us}};
}

}  // namespace winnow
