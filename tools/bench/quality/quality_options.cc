#include "tools/bench/quality/quality_options.h"

#include <algorithm>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace winnow {
namespace {

template <class Number>
absl::Status ParseNumber(std::string_view option, std::string_view text, Number least, Number* out) {
  if (absl::SimpleAtoi(AbslSv(text), out) && *out >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(AbslSv(option), ": \"", AbslSv(text), "\" is no number of at least ", least));
}

template <class Number>
absl::Status ParseNumbers(std::string_view option, std::string_view text, Number least, std::vector<Number>* out) {
  for (const absl::string_view part : absl::StrSplit(AbslSv(text), ',')) {
    WINNOW_RETURN_IF_ERROR(ParseNumber(option, StdSv(part), least, &out->emplace_back()));
  }
  return absl::OkStatus();
}

absl::Status ParseShard(std::string_view text, QualityOptions* options) {
  const std::vector<std::string> parts = absl::StrSplit(AbslSv(text), '/');
  if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &options->shard) &&
      absl::SimpleAtoi(parts[1], &options->shards) && options->shard >= 0 && options->shard < options->shards) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--shard: \"", AbslSv(text), "\" is not I/N with 0 <= I < N"));
}

absl::Status ParseOption(std::string_view option, std::string_view value, QualityOptions* o) {
  const auto append_list = [&](std::vector<std::string>* out) {
    for (const absl::string_view part : absl::StrSplit(AbslSv(value), ',', absl::SkipEmpty())) out->emplace_back(part);
    return absl::OkStatus();
  };
  const auto text = [&](std::string* out) {
    *out = value;
    return absl::OkStatus();
  };
  if (option == "--prompts") return text(&o->prompts_file);
  if (option == "--tasks") return append_list(&o->plan.tasks);
  if (option == "--chars") return ParseNumbers(option, value, 1, &o->plan.chars);
  if (option == "--count") return ParseNumber(option, value, 1, &o->plan.count);
  if (option == "--seed") return ParseNumber<uint64_t>(option, value, 0, &o->plan.seed);
  if (option == "--jsonl-out") return text(&o->jsonl_out);
  if (option == "--spec") return o->specs.emplace_back(value), absl::OkStatus();
  if (option == "--presets") return append_list(&o->specs);
  if (option == "--budgets") return ParseNumbers<uint32_t>(option, value, 1, &o->budgets);
  if (option == "--head-profile") return text(&o->head_profile);
  if (option == "--max-answer") return ParseNumber<uint32_t>(option, value, 1, &o->max_answer_tokens);
  if (option == "--jobs") return ParseNumber(option, value, 1, &o->jobs);
  if (option == "--threads") return ParseNumber(option, value, 1, &o->threads);
  if (option == "--rows") return ParseNumber<size_t>(option, value, 1, &o->rows);
  if (option == "--shard") return ParseShard(value, o);
  if (option == "--greedy-server") return text(&o->greedy_server);
  if (option == "--out") return text(&o->out_dir);
  return absl::InvalidArgumentError(absl::StrCat("unknown option ", AbslSv(option)));
}

void FillDefaults(QualityOptions* o) {
  if (o->prompts_file.empty()) {
    if (o->plan.tasks.empty()) o->plan.tasks = {"needle", "walk", "running_sum"};
    if (o->plan.chars.empty()) o->plan.chars = {12000};
    if (o->plan.count == 0) o->plan.count = 4;
  }
  if (o->filler_files.empty() && o->prompts_file.empty()) o->filler_files = DefaultFillerFiles();
  if (o->specs.empty()) o->specs = {"winnow", "async-token", "exact-token"};
  if (o->budgets.empty()) o->budgets = {128, 256, 512};
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (o->jobs == 0) o->jobs = std::max(1, cores / o->threads);
}

}  // namespace

std::string QualityOptions::Usage() {
  return R"(usage: selection_quality MODEL_DIR [OPTION VALUE ...]     accuracy of selections, teacher-forced
       selection_quality --greedy-server HOST:PORT [...]   the same through a running cluster, greedy
       selection_quality --merge FILE... [--out DIR]       join the answers.csv of several runs
       selection_quality --jsonl-out FILE [...]            only make prompts

prompts
  --prompts FILE       JSON lines with id, task, chars, prompt, answer; the next three then choose among them
  --tasks LIST         needle,multi_value,variables,walk,running_sum,copy (made: needle,walk,running_sum)
  --chars LIST         lengths in characters (made: 12000)
  --count N            of each task and length (made: 4)
  --seed S             of made prompts (1)
  --filler FILE...     what facts are hidden in (README.md and docs/*.md of the source tree)
  --jsonl-out FILE     writes the prompts
selections
  --spec SPEC[:BUDGET] one specification (preset[,field=value...]), repeatable; without a budget it runs at all of
                       --budgets
  --presets LIST       several (winnow,async-token,exact-token); dense always runs
  --budgets LIST       selected rows per kv head (128,256,512)
  --head-profile FILE  of `winnow profile-heads`, for specifications with profile_use; served: the server's own
  --max-answer N       only the first N tokens of an answer count
running
  --jobs N             prompts at once (cores / threads)
  --threads N          of each (1)
  --rows N             specifications per decode step (16); memory grows with jobs x rows x length
  --shard I/N          every N-th prompt from the I-th on
  --out DIR            answers.csv, summary.csv, accuracy_budget.svg, accuracy_bytes.svg (selection_quality)
)";
}

absl::StatusOr<QualityOptions> QualityOptions::Parse(const std::vector<std::string>& arguments) {
  QualityOptions options;
  for (size_t i = 0; i < arguments.size();) {
    const std::string& option = arguments[i++];
    if (!option.starts_with("--")) {
      if (!options.model_dir.empty()) return absl::InvalidArgumentError(absl::StrCat("what is \"", option, "\"?"));
      options.model_dir = option;
      continue;
    }
    if (option == "--filler" || option == "--merge") {
      std::vector<std::string>& files = option == "--merge" ? options.merge : options.filler_files;
      while (i < arguments.size() && !arguments[i].starts_with("--")) files.push_back(arguments[i++]);
      if (files.empty()) return absl::InvalidArgumentError(absl::StrCat(option, " needs files"));
      continue;
    }
    if (i == arguments.size()) return absl::InvalidArgumentError(absl::StrCat(option, " needs a value"));
    WINNOW_RETURN_IF_ERROR(ParseOption(option, arguments[i++], &options));
  }
  FillDefaults(&options);
  return options;
}

}  // namespace winnow
