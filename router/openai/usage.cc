#include "router/openai/usage.h"

#include <algorithm>

namespace winnow {

void UsageTotals::Add(const GenerationUsage& usage) {
  prompt_tokens_ += usage.prompt_tokens;
  completion_tokens_ += usage.completion_tokens;
}

void UsageTotals::Add(const v1::SelectionStats& stats) {
  if (stats.has_captured_mass_mean()) {
    // A measured output without steps still counts.
    const double weight = std::max<uint32_t>(1, stats.decode_steps());
    mass_sum_ += weight * stats.captured_mass_mean();
    mass_weight_ += weight;
  }
  if (stats.has_captured_mass_p5())
    mass_p5_ = std::min(mass_p5_.value_or(stats.captured_mass_p5()), stats.captured_mass_p5());
  lookups_ += stats.selection_lookups();
  hits_ += stats.selection_hits();
  streamed_rows_ += stats.streamed_rows();
  streamed_bytes_ += stats.streamed_bytes();
  reattach_count_ += stats.reattach_count();
  not_identical_ = not_identical_ || stats.not_identical();
  if (stats.context_tokens() >= context_tokens_) {
    context_tokens_ = stats.context_tokens();
    resident_rows_ = stats.resident_rows();
  }
}

void UsageTotals::Write(JsonWriter* json) const {
  const auto ratio = [&](const char* name, bool measured, double value) {
    json->Key(name);
    measured ? json->Float(static_cast<float>(value)) : json->Null();
  };
  json->BeginObject();
  json->Key("prompt_tokens").Int(prompt_tokens_);
  json->Key("completion_tokens").Int(completion_tokens_);
  json->Key("total_tokens").Int(uint64_t{prompt_tokens_} + completion_tokens_);
  json->Key("prompt_tokens_details").BeginObject().Key("cached_tokens").Int(0).EndObject();
  json->Key("winnow").BeginObject();
  json->Key("selection").String(selection_);
  ratio("captured_mass_mean", mass_weight_ > 0, mass_weight_ > 0 ? mass_sum_ / mass_weight_ : 0);
  ratio("captured_mass_p5", mass_p5_.has_value(), mass_p5_.value_or(0));
  ratio("hit_ratio", lookups_ > 0, lookups_ > 0 ? static_cast<double>(hits_) / static_cast<double>(lookups_) : 0);
  json->Key("streamed_rows").Int(streamed_rows_);
  json->Key("streamed_bytes").Int(streamed_bytes_);
  json->Key("context_tokens").Int(context_tokens_);
  json->Key("resident_rows").Int(resident_rows_);
  json->Key("reattach_count").Int(reattach_count_);
  json->Key("not_identical").Bool(not_identical_);
  json->EndObject().EndObject();
}

}  // namespace winnow
