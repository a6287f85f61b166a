#include "cmd/plan/placement_choice.h"

#include "common/model/synthetic_models.h"
#include "tools/plan/dense_below.h"

namespace winnow {

bool SelectsInPlace(const UpOptions& options, int gpus) {
  const bool may_compute_on_gpu = options.device.kind != DeviceChoice::Kind::kCpu && options.device.more.empty() &&
                                  options.tensor_parallel <= 1 && options.select_in_place != SelectInPlace::kOff;
  const bool is_alone =
      gpus == 1 || (options.transport != TransportKind::kAuto && options.transport != TransportKind::kP2p);
  return may_compute_on_gpu && gpus > 0 && (is_alone || options.select_in_place == SelectInPlace::kOn);
}

bool ChooseInPlaceSelection(UpOptions& options, int gpus) {
  if (options.selection.specification != SelectionOptions().specification) return false;
  if (!SelectsInPlace(options, gpus)) return false;
  const absl::StatusOr<ModelConfig> config = ModelConfigOf(options.model);
  if (!config.ok() || config->latent) return false;
  const bool has_codes = config->quantization.format != WeightQuantization::Format::kNone;
  const double weight_bytes =
      has_codes ? config->quantization.bits / 8.0 : static_cast<double>(DtypeBytes(options.compute));
  const auto kv_bytes = static_cast<double>(DtypeBytes(options.kv_dtype));
  const uint32_t dense =
      DenseBelowTokens(PlanModelOf(*config, weight_bytes, kv_bytes), config->num_layers, DeviceRates());
  if (dense == 0) return false;
  options.selection.specification = absl::StrCat("winnow,dense_below_tokens=", dense);
  return true;
}

}  // namespace winnow
