#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "tools/bench/tasks/prompt_generator.h"

namespace winnow {

// The command line of selection_quality.
struct QualityOptions {
  std::string model_dir;

  // Prompts: from a file, or made. With a file, tasks, chars and count only choose among its prompts (empty or 0: all).
  std::string prompts_file;
  PromptPlan plan{.tasks = {}, .chars = {}, .count = 0, .seed = 1};
  std::vector<std::string> filler_files;  // empty: this project's documents
  std::string jsonl_out;

  std::vector<std::string> specs;
  std::vector<uint32_t> budgets;
  std::string head_profile;        // that profile_use refers to
  uint32_t max_answer_tokens = 0;  // of an answer that count; 0: all

  int jobs = 0;     // prompts at once; 0: one for every `threads` cores
  int threads = 1;  // of each
  size_t rows = 16;
  int shard = 0, shards = 1;  // prompts whose index is `shard` modulo `shards`

  std::string greedy_server;       // "host:port" of a router
  std::vector<std::string> merge;  // answer files to join instead of measuring
  std::string out_dir = "selection_quality";

  static std::string Usage();
  // INVALID_ARGUMENT names the option.
  static absl::StatusOr<QualityOptions> Parse(const std::vector<std::string>& arguments);
};

}  // namespace winnow
