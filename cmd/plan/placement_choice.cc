#include "cmd/plan/placement_choice.h"

#include <algorithm>
#include <vector>

#include "common/config/device_choice.h"
#include "common/model/synthetic_models.h"
#include "tools/plan/dense_below.h"

namespace winnow {

namespace {

// GPUs that hold the model together in each inference rank.
int GpusOfEachRank(const UpOptions& options) {
  const int ranks = std::max(options.num_inference_ranks(), 1);
  const absl::StatusOr<std::vector<int>> gpus = GpusOfRank(options.device, options.tensor_parallel, 0, ranks);
  return gpus.ok() ? static_cast<int>(gpus->size()) : 1;
}

}  // namespace

bool SelectsInPlace(const UpOptions& options, int gpus) {
  const int each = GpusOfEachRank(options);
  if (options.device.kind == DeviceChoice::Kind::kCpu || gpus < each) return false;
  if (options.select_in_place != SelectInPlace::kAuto) return options.select_in_place == SelectInPlace::kOn;
  // Cache ranks' GPUs could select, of which there must be as many.
  const bool may_link = options.transport == TransportKind::kAuto || options.transport == TransportKind::kP2p;
  return !may_link || gpus < 2 * each;
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
  PlanModel model = PlanModelOf(*config, weight_bytes, kv_bytes);
  model.kv_token_bytes /= GpusOfEachRank(options);  // each reads the rows of its heads
  const uint32_t dense = DenseBelowTokens(model, config->num_layers, DeviceRates());
  if (dense == 0) return false;
  options.selection.specification = absl::StrCat("winnow,dense_below_tokens=", dense);
  return true;
}

}  // namespace winnow
