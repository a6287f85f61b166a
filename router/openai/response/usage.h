#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "router/generation/generation.h"
#include "router/openai/json/json_writer.h"

namespace winnow {

// Token counts and selection statistics of all outputs of a request.
class UsageTotals {
 public:
  void Add(const GenerationUsage& usage);
  void Add(const v1::SelectionStats& stats);
  // Of the completion tokens: those of reasoning.
  void AddReasoning(uint32_t tokens) { reasoning_tokens_ += tokens; }
  // The specification that was used, as text.
  void SetSelection(std::string text) { selection_ = std::move(text); }

  uint32_t prompt_tokens() const { return prompt_tokens_; }
  uint32_t completion_tokens() const { return completion_tokens_; }
  uint32_t cached_prompt_tokens() const { return cached_prompt_tokens_; }
  uint32_t reasoning_tokens() const { return reasoning_tokens_; }

  // The "usage" object. In its "winnow" part: captured_mass_mean is the mean of the outputs' means, weighted by their
  // decode steps; captured_mass_p5 their lowest; hit_ratio all hits over all lookups; streamed_*, reattach_count and
  // preempted_count are sums, and so are corrections and correction_rows; captured_mass_before_* are those of corrected
  // outputs; context_tokens and resident_rows are those of the output with the longest context. What was not measured
  // is null; and without statistics of any output, all of them are.
  void Write(JsonWriter* json) const;
  // Its "winnow" part alone.
  void WriteSelection(JsonWriter* json) const;

 private:
  std::string selection_;
  bool has_stats_ = false;
  uint32_t prompt_tokens_ = 0;
  uint32_t completion_tokens_ = 0;
  uint32_t cached_prompt_tokens_ = 0;
  uint32_t reasoning_tokens_ = 0;

  // Means weighted by decode steps, and the lowest of the 5th percentiles.
  struct Mass {
    double sum = 0;
    double weight = 0;
    std::optional<float> p5;
    void Add(double weight_of_mean, float mean, float fifth_percentile);
  };

  Mass mass_;
  Mass mass_before_;
  bool mass_is_bound_ = false;
  uint64_t missed_top_k_ = 0;
  uint64_t widened_ = 0;
  uint64_t correction_rows_ = 0;
  uint64_t lookups_ = 0;
  uint64_t hits_ = 0;
  uint64_t streamed_rows_ = 0;
  uint64_t streamed_bytes_ = 0;
  uint32_t context_tokens_ = 0;
  uint32_t resident_rows_ = 0;
  uint64_t reattach_count_ = 0;
  uint64_t preempted_count_ = 0;
  bool not_identical_ = false;
};

}  // namespace winnow
