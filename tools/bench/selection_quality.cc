// Accuracy of selections: long-context questions answered with several specifications side by side, against dense
// attention. See QualityOptions::Usage.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "tools/bench/quality/answer_summary.h"
#include "tools/bench/quality/forced_decoder.h"
#include "tools/bench/quality/quality_options.h"
#include "tools/bench/quality/quality_plots.h"
#include "tools/bench/quality/served_answers.h"
#include "tools/bench/quality/worker_pool.h"
#include "tools/bench/tasks/prompt_file.h"
#include "tools/bench/tasks/prompt_generator.h"

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

absl::Status WriteFile(const std::filesystem::path& file, const std::string& text) {
  std::ofstream out(file);
  out << text;
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError(absl::StrCat(file.string(), ": cannot be written"));
}

// Those of a file that --tasks, --chars and --count choose.
std::vector<TaskPrompt> Choose(std::vector<TaskPrompt> prompts, const PromptPlan& plan) {
  std::map<std::pair<std::string, int>, int> taken;
  std::erase_if(prompts, [&](const TaskPrompt& prompt) {
    const auto has = [](const auto& list, const auto& item) {
      return list.empty() || std::find(list.begin(), list.end(), item) != list.end();
    };
    if (!has(plan.tasks, prompt.task) || !has(plan.chars, prompt.chars)) return true;
    return plan.count > 0 && ++taken[{prompt.task, prompt.chars}] > plan.count;
  });
  return prompts;
}

absl::StatusOr<std::vector<TaskPrompt>> GetPrompts(const QualityOptions& options) {
  std::vector<TaskPrompt> prompts;
  if (!options.prompts_file.empty()) {
    WINNOW_ASSIGN_OR_RETURN(prompts, ReadPrompts(options.prompts_file));
    prompts = Choose(std::move(prompts), options.plan);
  } else {
    WINNOW_ASSIGN_OR_RETURN(const FillerText filler, FillerText::Load(options.filler_files));
    WINNOW_ASSIGN_OR_RETURN(prompts, GeneratePrompts(options.plan, filler));
  }
  std::vector<TaskPrompt> shard;
  for (size_t i = static_cast<size_t>(options.shard); i < prompts.size(); i += static_cast<size_t>(options.shards)) {
    shard.push_back(std::move(prompts[i]));
  }
  if (shard.empty()) return absl::InvalidArgumentError("no prompt is left by --tasks, --chars and --shard");
  return shard;
}

// Collects records by prompt, keeps answers.csv up to date and says how far the run is. Thread-safe.
class Progress {
 public:
  Progress(const QualityOptions& options, size_t prompts)
      : file_(std::filesystem::path(options.out_dir) / "answers.csv"), by_prompt_(prompts) {
    file_ << AnswerHeader() << '\n';
  }

  void Add(size_t index, const TaskPrompt& prompt, std::vector<AnswerRecord> records, Clock::time_point start) {
    int exact = 0;
    uint32_t tokens = 0;
    for (AnswerRecord& record : records) {
      record.id = prompt.id;
      record.task = prompt.task;
      record.chars = prompt.chars;
      exact += record.exact;
      tokens = record.prompt_tokens;
    }
    std::lock_guard lock(mutex_);
    for (const AnswerRecord& record : records) file_ << AnswerLine(record) << '\n';
    file_.flush();
    std::fprintf(stderr, "[%zu/%zu] %s: %u tokens, %d of %zu exact, dense %s, %.1f s (%.0f s in all)\n", ++done_,
                 by_prompt_.size(), prompt.id.c_str(), tokens, exact, records.size(),
                 records.front().exact ? "right" : "wrong", Seconds(start), Seconds(begin_));
    by_prompt_[index] = std::move(records);
  }

  std::vector<AnswerRecord> TakeAll() {
    std::vector<AnswerRecord> all;
    for (std::vector<AnswerRecord>& records : by_prompt_) {
      for (AnswerRecord& record : records) all.push_back(std::move(record));
    }
    return all;
  }

 private:
  static double Seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }
  const Clock::time_point begin_ = Clock::now();
  std::mutex mutex_;
  // Guarded by mutex_.
  std::ofstream file_;
  size_t done_ = 0;
  std::vector<std::vector<AnswerRecord>> by_prompt_;
};

absl::Status RunForced(const QualityOptions& options, const std::vector<TaskPrompt>& prompts,
                       std::vector<SpecChoice> specs, Progress& progress) {
  const bool projects = std::any_of(specs.begin(), specs.end(), [](const SpecChoice& choice) {
    return choice.spec.projection == Projection::kCacheRank;
  });
  WINNOW_ASSIGN_OR_RETURN(const std::unique_ptr<QualityModel> model,
                          QualityModel::Load(options.model_dir, options.jobs * options.threads, projects));
  WINNOW_RETURN_IF_ERROR(UseHeadProfile(options.head_profile, model->layout(), &specs));
  std::vector<TokenPrompt> tokens;
  size_t longest = 0;
  for (const TaskPrompt& prompt : prompts) {
    WINNOW_ASSIGN_OR_RETURN(TokenPrompt one, model->Tokenize(prompt, options.max_answer_tokens));
    longest = std::max(longest, one.prompt.size() + one.answer.size());
    tokens.push_back(std::move(one));
  }
  const int jobs = std::min<int>(options.jobs, static_cast<int>(prompts.size()));
  std::fprintf(stderr, "%zu prompts of up to %zu tokens, %zu specifications, %d jobs of %d threads, %s\n",
               prompts.size(), longest, specs.size(), jobs, options.threads,
               std::string(model->kernels().name).c_str());
  const ForcedDecoder::Options decoder_options{.threads = options.threads,
                                               .rows = std::min(options.rows, specs.size()),
                                               .max_positions = static_cast<uint32_t>(longest)};
  WorkerPool pool(prompts.size());
  return pool.Run(jobs, [&]() -> absl::Status {
    WINNOW_ASSIGN_OR_RETURN(const auto decoder, ForcedDecoder::Create(*model, decoder_options));
    for (size_t i = pool.Next(); i < prompts.size(); i = pool.Next()) {
      const Clock::time_point start = Clock::now();
      absl::StatusOr<std::vector<AnswerRecord>> records = decoder->Run(tokens[i], specs);
      if (!records.ok()) return Annotate(records.status(), absl::StrCat("prompt ", prompts[i].id));
      progress.Add(i, prompts[i], *std::move(records), start);
    }
    return absl::OkStatus();
  });
}

absl::Status RunServed(const QualityOptions& options, const std::vector<TaskPrompt>& prompts,
                       const std::vector<SpecChoice>& specs, Progress& progress) {
  const ServedAnswers server(options.greedy_server);
  WorkerPool pool(prompts.size());
  return pool.Run(std::min<int>(options.jobs, static_cast<int>(prompts.size())), [&]() -> absl::Status {
    for (size_t i = pool.Next(); i < prompts.size(); i = pool.Next()) {
      const Clock::time_point start = Clock::now();
      std::vector<AnswerRecord> records;
      for (const SpecChoice& choice : specs) {
        WINNOW_ASSIGN_OR_RETURN(AnswerRecord record, server.Ask(prompts[i], choice));
        records.push_back(std::move(record));
      }
      progress.Add(i, prompts[i], std::move(records), start);
    }
    return absl::OkStatus();
  });
}

absl::Status Report(const QualityOptions& options, const std::vector<AnswerRecord>& records) {
  const std::filesystem::path out = options.out_dir;
  std::string answers = AnswerHeader() + "\n";
  for (const AnswerRecord& record : records) absl::StrAppend(&answers, AnswerLine(record), "\n");
  WINNOW_RETURN_IF_ERROR(WriteFile(out / "answers.csv", answers));
  const std::vector<AnswerSummary> summaries = Summarize(records);
  WINNOW_RETURN_IF_ERROR(WriteFile(out / "summary.csv", SummaryCsv(summaries)));
  WINNOW_RETURN_IF_ERROR(WriteFile(out / "accuracy_budget.svg", AccuracyAgainstBudget(summaries)));
  WINNOW_RETURN_IF_ERROR(WriteFile(out / "accuracy_bytes.svg", AccuracyAgainstBytes(summaries)));
  std::printf("%s\nKB: 1,024 bytes, over all layers and kv heads; saved in %s/\n", SummaryTable(summaries).c_str(),
              options.out_dir.c_str());
  return absl::OkStatus();
}

absl::Status Run(const QualityOptions& options) {
  const bool measures = !options.model_dir.empty() || !options.greedy_server.empty();
  if (!measures && options.merge.empty() && options.jsonl_out.empty()) {
    return absl::InvalidArgumentError("MODEL_DIR, --greedy-server, --merge or --jsonl-out is needed");
  }
  std::vector<AnswerRecord> records;
  std::vector<TaskPrompt> prompts;
  if (options.merge.empty()) {
    WINNOW_ASSIGN_OR_RETURN(prompts, GetPrompts(options));
    if (!options.jsonl_out.empty()) WINNOW_RETURN_IF_ERROR(WritePrompts(options.jsonl_out, prompts));
    if (!measures) return absl::OkStatus();
  } else {
    WINNOW_ASSIGN_OR_RETURN(records, MergeAnswers(options.merge));
  }
  std::error_code error;
  std::filesystem::create_directories(options.out_dir, error);
  if (error) return absl::UnavailableError(absl::StrCat(options.out_dir, ": ", error.message()));
  if (options.merge.empty()) {
    WINNOW_ASSIGN_OR_RETURN(const std::vector<SpecChoice> specs, SpecGrid(options.specs, options.budgets));
    Progress progress(options, prompts.size());
    WINNOW_RETURN_IF_ERROR(options.greedy_server.empty() ? RunForced(options, prompts, specs, progress)
                                                         : RunServed(options, prompts, specs, progress));
    records = progress.TakeAll();
  }
  return Report(options, records);
}

int Main(int argc, char** argv) {
  if (argc < 2) return std::fputs(QualityOptions::Usage().c_str(), stderr), 2;
  const absl::StatusOr<QualityOptions> options = QualityOptions::Parse({argv + 1, argv + argc});
  if (!options.ok()) {
    std::fprintf(stderr, "selection_quality: %s\n%s", std::string(options.status().message()).c_str(),
                 QualityOptions::Usage().c_str());
    return 2;
  }
  const absl::Status status = Run(*options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "selection_quality: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  return winnow::Main(argc, argv);
}
