#include "tools/engine/decode_breakdown.h"

#include "common/base/status.h"

namespace winnow {
namespace {

constexpr DecodePart kMatrices[] = {DecodePart::kQkv, DecodePart::kOutput, DecodePart::kGateUp, DecodePart::kDown,
                                    DecodePart::kLmHead};

double PartFloorUs(const PartFloors& floors, DecodePart part) {
  const auto us = [&](size_t bytes) { return static_cast<double>(bytes) / floors.read_rate; };
  const DeviceLayerWeights& layer = floors.weights.layer(0);
  const size_t layers = floors.weights.config().num_layers;
  switch (part) {
    case DecodePart::kQkv:
      return us(layers * MatrixBytes(layer.qkv));
    case DecodePart::kAttention:
      return us(floors.bytes.attended);
    case DecodePart::kOutput:
      return us(layers * MatrixBytes(layer.o));
    case DecodePart::kGateUp:
      return us(layers * MatrixBytes(layer.gate_up) + floors.bytes.experts * 2 / 3);
    case DecodePart::kDown:
      return us(layers * MatrixBytes(layer.down) + floors.bytes.experts / 3);
    case DecodePart::kLmHead:
      return us(MatrixBytes(floors.weights.lm_head()));
    default:
      return 0;
  }
}

DecodeParts WithoutPeers() {
  return DecodeParts::All().Without(DecodePart::kExchange).Without(DecodePart::kAllReduce);
}

absl::Status MeasureStepParts(DecodeBatch& batch, const PartFloors& floors, DecodeMeasurement& result) {
  WINNOW_ASSIGN_OR_RETURN(const double nothing, batch.TimeParts(DecodeParts::None()));
  WINNOW_ASSIGN_OR_RETURN(const double all, batch.TimeParts(WithoutPeers()));
  result.parts.push_back({.name = "begin step", .alone_us = nothing});
  for (int i = 0; i < kNumDecodeParts; ++i) {
    const auto part = static_cast<DecodePart>(i);
    if (!WithoutPeers().Has(part)) continue;
    WINNOW_ASSIGN_OR_RETURN(const double alone, batch.TimeParts(DecodeParts::Only(part)));
    WINNOW_ASSIGN_OR_RETURN(const double others, batch.TimeParts(WithoutPeers().Without(part)));
    result.parts.push_back({.name = DecodePartName(part),
                            .alone_us = alone - nothing,
                            .marginal_us = all - others,
                            .floor_us = PartFloorUs(floors, part)});
  }
  if (result.num_ranks > 1) result.parts.push_back({.name = "all-reduce", .marginal_us = result.step_us - all});
  return absl::OkStatus();
}

absl::Status MeasureCacheParts(GpuCacheSide& cache, const PartFloors& floors, DecodeMeasurement& result) {
  using Kind = SelectAction::Kind;
  constexpr std::pair<const char*, Kind> kKinds[] = {{"own query", Kind::kQueriesOfOwn},
                                                     {"depth query", Kind::kQueriesFromHidden},
                                                     {"past query", Kind::kQueriesFromPast},
                                                     {"select+slots", Kind::kSelect},
                                                     {"push", Kind::kPush},
                                                     {"append", Kind::kAppend}};
  for (const auto& [name, kind] : kKinds) {
    WINNOW_ASSIGN_OR_RETURN(const double us, cache.TimeActions(kind));
    const double floor = kind == Kind::kSelect ? static_cast<double>(floors.bytes.scored) / floors.read_rate : 0;
    result.parts.push_back({.name = name, .alone_us = us, .floor_us = floor});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureShares(DecodeBatch& batch, DecodeMeasurement& result) {
  DecodeParts matrices = DecodeParts::None();
  for (const DecodePart part : kMatrices) matrices = matrices.With(part);
  WINNOW_ASSIGN_OR_RETURN(const double nothing, batch.TimeParts(DecodeParts::None()));
  WINNOW_ASSIGN_OR_RETURN(result.matrices_us, batch.TimeParts(matrices));
  WINNOW_ASSIGN_OR_RETURN(result.attention_us, batch.TimeParts(DecodeParts::Only(DecodePart::kAttention)));
  result.attention_us -= nothing;
  result.matrices_us -= nothing;
  WINNOW_ASSIGN_OR_RETURN(const double alone, batch.TimeParts(WithoutPeers()));
  result.selection_us = Selects(result.of.placement) ? result.step_us - alone : 0;
  result.rest_us = result.step_us - result.matrices_us - result.attention_us - result.selection_us;
  return absl::OkStatus();
}

absl::Status MeasureParts(DecodeBatch& batch, const PartFloors& floors, DecodeMeasurement& result) {
  return batch.cache() == nullptr ? MeasureStepParts(batch, floors, result)
                                  : MeasureCacheParts(*batch.cache(), floors, result);
}

}  // namespace winnow
