#include "router/openai/response/usage.h"

#include <algorithm>

namespace winnow {

void UsageTotals::Mass::Add(double weight_of_mean, float mean, float fifth_percentile) {
  sum += weight_of_mean * mean;
  weight += weight_of_mean;
  p5 = std::min(p5.value_or(fifth_percentile), fifth_percentile);
}

void UsageTotals::Add(const GenerationUsage& usage) {
  prompt_tokens_ += usage.prompt_tokens;
  completion_tokens_ += usage.completion_tokens;
  cached_prompt_tokens_ += usage.cached_prompt_tokens;
}

void UsageTotals::Add(const v1::SelectionStats& stats) {
  has_stats_ = true;
  // A measured output without steps still counts.
  const double weight = std::max<uint32_t>(1, stats.decode_steps());
  if (stats.has_captured_mass_mean()) mass_.Add(weight, stats.captured_mass_mean(), stats.captured_mass_p5());
  if (stats.has_captured_mass_before_mean()) {
    mass_before_.Add(weight, stats.captured_mass_before_mean(), stats.captured_mass_before_p5());
  }
  mass_is_bound_ = mass_is_bound_ || stats.captured_mass_is_bound();
  missed_top_k_ += stats.missed_top_k_corrections();
  widened_ += stats.widened_corrections();
  correction_rows_ += stats.correction_rows();
  lookups_ += stats.selection_lookups();
  hits_ += stats.selection_hits();
  streamed_rows_ += stats.streamed_rows();
  streamed_bytes_ += stats.streamed_bytes();
  reattach_count_ += stats.reattach_count();
  preempted_count_ += stats.preempted_count();
  not_identical_ = not_identical_ || stats.not_identical();
  if (stats.context_tokens() >= context_tokens_) {
    context_tokens_ = stats.context_tokens();
    resident_rows_ = stats.resident_rows();
  }
}

void UsageTotals::Write(JsonWriter* json) const {
  json->BeginObject();
  json->Key("prompt_tokens").Int(prompt_tokens_);
  json->Key("completion_tokens").Int(completion_tokens_);
  json->Key("total_tokens").Int(uint64_t{prompt_tokens_} + completion_tokens_);
  json->Key("prompt_tokens_details").BeginObject().Key("cached_tokens").Int(cached_prompt_tokens_).EndObject();
  json->Key("winnow");
  WriteSelection(json);
  json->EndObject();
}

void UsageTotals::WriteSelection(JsonWriter* json) const {
  const auto ratio = [&](const char* name, bool measured, double value) {
    json->Key(name);
    measured ? json->Float(static_cast<float>(value)) : json->Null();
  };
  // What the outputs' ranks have said, if any has.
  const auto count = [&](const char* name, uint64_t value) {
    json->Key(name);
    has_stats_ ? json->Int(value) : json->Null();
  };
  const auto flag = [&](const char* name, bool value) {
    json->Key(name);
    has_stats_ ? json->Bool(value) : json->Null();
  };
  json->BeginObject();
  json->Key("selection").String(selection_);
  const auto mass = [&](const char* mean, const char* p5, const Mass& of) {
    ratio(mean, of.weight > 0, of.weight > 0 ? of.sum / of.weight : 0);
    ratio(p5, of.p5.has_value(), of.p5.value_or(0));
  };
  mass("captured_mass_mean", "captured_mass_p5", mass_);
  mass("captured_mass_before_mean", "captured_mass_before_p5", mass_before_);
  flag("captured_mass_is_bound", mass_is_bound_);
  json->Key("corrections").BeginObject();
  count("missed_top_k", missed_top_k_);
  count("widened", widened_);
  json->EndObject();
  count("correction_rows", correction_rows_);
  ratio("hit_ratio", lookups_ > 0, lookups_ > 0 ? static_cast<double>(hits_) / static_cast<double>(lookups_) : 0);
  count("streamed_rows", streamed_rows_);
  count("streamed_bytes", streamed_bytes_);
  count("context_tokens", context_tokens_);
  count("resident_rows", resident_rows_);
  count("reattach_count", reattach_count_);
  count("preempted_count", preempted_count_);
  flag("not_identical", not_identical_);
  json->EndObject();
}

}  // namespace winnow
