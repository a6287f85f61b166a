#pragma once
#include <cstdint>
#include <istream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// What one specification made of one prompt: a line of the file that runs leave behind and that can be merged.
struct AnswerRecord {
  std::string mode;  // "forced": every specification saw the right answer so far; "greedy": its own
  std::string id;
  std::string task;
  int chars = 0;
  uint32_t prompt_tokens = 0;
  uint32_t answer_tokens = 0;  // of the right answer, end token included
  std::string spec;            // as written on the command line, without its budget
  uint32_t budget = 0;         // selected rows per kv head; 0: unlimited
  uint32_t right_tokens = 0;
  bool exact = false;
  uint32_t decode_steps = 0;
  // Captured masses over steps, layers and kv heads, and how many fall in [bin / 1000, (bin + 1) / 1000).
  uint64_t mass_count = 0;
  double mass_mean = 0;
  std::map<int, uint64_t> mass_bins;
  // Corrections by the quality guard, which the masses above include: mean mass without them (0 where none waits for
  // verifications), (step, layer, kv head) that were corrected, and rows that the cache rank read for them.
  double mass_before_mean = 0;
  uint64_t corrections = 0;
  uint64_t correction_rows = 0;
  // Over all decode steps, layers and kv heads.
  uint64_t attended_rows = 0;  // sinks and recent rows included, those of corrections not; 0 where nobody counted
  uint64_t selection_lookups = 0;
  uint64_t selection_hits = 0;
  uint64_t streamed_rows = 0;
  uint64_t streamed_bytes = 0;
  uint64_t scored_key_bytes = 0;

  friend bool operator==(const AnswerRecord&, const AnswerRecord&) = default;
};

// The file: RFC 4180 with a header line, one record a line.
std::string AnswerHeader();
std::string AnswerLine(const AnswerRecord& record);
// Fields are found by the header's names, so that columns may move; attended_rows may be missing, as in older files.
// INVALID_ARGUMENT and NOT_FOUND name file and line.
absl::StatusOr<std::vector<AnswerRecord>> ParseAnswers(std::istream& in, std::string_view file);
absl::StatusOr<std::vector<AnswerRecord>> ReadAnswers(const std::string& file);

// All records of several files. INVALID_ARGUMENT when two of them answer the same prompt with the same specification:
// they would count twice.
absl::StatusOr<std::vector<AnswerRecord>> MergeAnswers(const std::vector<std::string>& files);

}  // namespace winnow
