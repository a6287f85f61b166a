#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <utility>

#include "absl/strings/str_split.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/role/machine.h"
#include "cmd/terminal/progress_line.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"
#include "inference_rank/engine/head_probe.h"
#include "model/transformer.h"
#include "model/weights/weights.h"
#include "tools/profile/profile_texts.h"

namespace winnow {
namespace {

constexpr char kProfileHeadsAbout[] =
    "Runs texts through a model and measures how much of the context each (layer, kv head) attends to. Servers that\n"
    "are started with --head-profile FILE can share out their budget by it and keep nothing but sinks and recent\n"
    "rows of heads that need no more (profile_use=budgets, streaming, budgets-and-streaming). Heads that look things\n"
    "up show it while an answer is given: prompts with answers (--prompts) like those that will be asked are best.\n"
    "docs/selection.md says more.\n";

constexpr uint32_t kChunk = 512;  // tokens of a forward pass

struct ProfileOptions {
  std::string model;
  std::string text;
  std::string prompts;
  std::string out;
  uint32_t tokens = 8192;
  uint32_t queries = 64;
  double streaming_below = 0.05;
  uint32_t sinks = 4;
  uint32_t recent = 64;
  int threads = 0;
  bool quiet = false;

  void Declare(Fields& fields) {
    fields.Folder("model", &model,
                  "Folder of the model: config.json, safetensors and a tokenizer (tokenizer.json, tokenizer.model, "
                  "*.tiktoken or vocab.txt). Required.");
    fields.Text("text", &text, "Text files to measure on, separated by commas; others may follow the options.");
    fields.File(
        "prompts", &prompts,
        "JSONL file, one object a line with a \"prompt\", a user's message, and the right \"answer\": heads are "
        "measured while it is said. Without answers prompts are texts like others.");
    fields.File("out", &out, "File to write. Required.");
    fields.Integer(
        "tokens", &tokens,
        "Longest piece of a text that is run at once; longer texts are cut into pieces of one length, prompts with "
        "answers never. Longer pieces show more of what heads look for; time grows a little faster than their length.",
        256u, 1u << 20);
    fields.Integer("queries", &queries,
                   "Positions measured of each piece, at most: spread over its last half, or over the answer.", 1u,
                   65536u);
    fields.Number("streaming-below", &streaming_below,
                  "A head streams when in the mean less than this share of its "
                  "attention lies outside sinks and recent rows.",
                  0, 1);
    fields.Integer("sinks", &sinks, "First positions that are always attended, as the server will have them.", 0u,
                   4096u);
    fields.Integer("recent", &recent, "Newest positions that are always attended, as the server will have them.", 1u,
                   65536u);
    fields.Integer("threads", &threads, "Compute threads; 0 = one per core.", 0, 1024);
    fields.Bool("quiet", &quiet, "No progress on stderr.");
  }
};

absl::StatusOr<std::vector<ProfileText>> ReadTexts(const ProfileOptions& options,
                                                   const std::vector<std::string>& files) {
  WINNOW_ASSIGN_OR_RETURN(const auto model_text, ModelText::Load(options.model));
  std::vector<std::string> paths = absl::StrSplit(options.text, ',', absl::SkipEmpty());
  paths.insert(paths.end(), files.begin(), files.end());
  std::vector<ProfileText> texts;
  for (const std::string& path : paths) {
    WINNOW_ASSIGN_OR_RETURN(ProfileText text, ReadTextFile(path, *model_text));
    texts.push_back(std::move(text));
  }
  if (!options.prompts.empty()) {
    WINNOW_ASSIGN_OR_RETURN(std::vector<ProfileText> prompts, ReadPromptFile(options.prompts, *model_text));
    std::move(prompts.begin(), prompts.end(), std::back_inserter(texts));
  }
  if (texts.empty()) return absl::InvalidArgumentError("give texts to measure on: files, --text or --prompts");
  return texts;
}

// Before minutes of measuring: whether the result can be written.
absl::Status CheckWritable(const std::string& path) {
  std::error_code ignored;
  const bool existed = std::filesystem::exists(path, ignored);
  const bool writable = std::ofstream(path, std::ios::binary | std::ios::app).good();
  if (writable && !existed) std::filesystem::remove(path, ignored);
  return writable ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat("--out: cannot write ", path));
}

void PrintTable(const HeadProfile& profile) {
  constexpr uint32_t kBudgets[] = {256, 2048};
  std::vector<std::vector<uint32_t>> budgets;
  for (const uint32_t budget : kBudgets) {
    const SelectionSpec spec{.budget_tokens = budget, .profile_use = ProfileUse::kBudgets};
    budgets.push_back(WithHeadProfile(spec, profile).head_budgets);
  }
  const auto& masses = HeadProfile::kMasses;
  std::printf("layer  kv head  window mass     p5   rows for %.2f  for %.2f  for %.2f   of %u  of %u\n", masses[0],
              masses[1], masses[2], kBudgets[0], kBudgets[1]);
  int streaming = 0;
  for (size_t list = 0; list < profile.heads.size(); ++list) {
    const HeadProfile::Head& head = profile.heads[list];
    streaming += head.streaming;
    std::printf("%5zu  %7zu  %11.3f  %5.3f  %14.1f  %8.1f  %8.1f  %7u  %7u%s\n", list / profile.num_kv_heads,
                list % profile.num_kv_heads, head.window_mass, head.window_mass_p5, head.tokens_needed[0],
                head.tokens_needed[1], head.tokens_needed[2], budgets[0][list], budgets[1][list],
                head.streaming ? "  streams" : "");
  }
  std::printf(
      "\nwindow mass: share of the attention under %u sinks and %u recent rows, mean and 5th percentile over queries.\n"
      "rows for a mass: how many others, the best ones, it takes besides, in the mean. of %u: rows that the head gets\n"
      "with profile_use=budgets instead of %u. %d of %zu heads stream.\n",
      profile.sink_tokens, profile.recent_tokens, kBudgets[0], kBudgets[0], streaming, profile.heads.size());
}

// A text in pieces of one length, at most `longest`; with an answer it is one.
std::vector<std::span<const uint32_t>> Pieces(const ProfileText& text, uint32_t longest) {
  const size_t size = text.tokens.size();
  const size_t count = text.answer_begins > 0 ? 1 : (size + longest - 1) / longest;
  std::vector<std::span<const uint32_t>> pieces;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = size * i / count, end = size * (i + 1) / count;
    pieces.push_back(std::span(text.tokens).subspan(begin, end - begin));
  }
  return pieces;
}

// How many of all tokens have been run.
class TokenProgress {
 public:
  TokenProgress(ProgressLine& line, const std::vector<ProfileText>& texts) : line_(line) {
    for (const ProfileText& text : texts) all_ += static_cast<double>(text.tokens.size());
    Show();
  }
  void Add(size_t tokens) {
    done_ += static_cast<double>(tokens);
    Show();
  }

 private:
  void Show() { line_.Show(ProgressBar(done_, all_, "tokens")); }

  ProgressLine& line_;
  double done_ = 0, all_ = 0;
};

// Runs a piece of a text and measures it from a position on. False when there is nothing to measure: no position has
// rows outside of sinks and recent window.
absl::StatusOr<bool> MeasurePiece(std::span<const uint32_t> piece, uint32_t measured_from, Transformer& transformer,
                                  HeadProbe& probe, TokenProgress& progress) {
  const auto count = static_cast<uint32_t>(piece.size());
  if (HeadProbe::SampledPositions(probe.options(), count, measured_from).empty()) return false;
  WINNOW_RETURN_IF_ERROR(probe.BeginText(count, measured_from));
  for (uint32_t first = 0; first < count; first += kChunk) {
    const uint32_t rows = std::min(kChunk, count - first);
    probe.BeginChunk(first, rows);
    transformer.Prefill(piece.subspan(first, rows), first, /*last=*/false, probe);
    progress.Add(rows);
  }
  return true;
}

// Tokens that were run; 0 when the text is too short.
absl::StatusOr<uint64_t> MeasureText(const ProfileText& text, uint32_t longest, Transformer& transformer,
                                     HeadProbe& probe, TokenProgress& progress) {
  uint64_t tokens = 0;
  for (const std::span<const uint32_t> piece : Pieces(text, longest)) {
    const size_t from = text.answer_begins > 0 ? text.answer_begins : piece.size() / 2;
    WINNOW_ASSIGN_OR_RETURN(const bool measured,
                            MeasurePiece(piece, static_cast<uint32_t>(from), transformer, probe, progress));
    if (measured) tokens += piece.size();
    if (!measured) progress.Add(piece.size());
  }
  return tokens;
}

absl::StatusOr<HeadProfile> Measure(const ProfileOptions& options, const std::vector<std::string>& files) {
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.model));
  WINNOW_ASSIGN_OR_RETURN(const std::vector<ProfileText> texts, ReadTexts(options, files));
  for (const ProfileText& text : texts) {
    if (text.answer_begins == 0 || std::cmp_less_equal(text.tokens.size(), config.max_context_tokens)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(text.name, ": ", text.tokens.size(), " tokens exceed the model's ", config.max_context_tokens));
  }
  if (config.delta) return absl::UnimplementedError("heads of hybrid models are not profiled");
  ProgressLine line(options.quiet);
  line.Show("loading the weights");
  WINNOW_ASSIGN_OR_RETURN(const KernelTable* kernels, CpuKernels("auto"));
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> opened, Checkpoint::Open(options.model));
  const std::shared_ptr<const Checkpoint> checkpoint = std::move(opened);
  WINNOW_ASSIGN_OR_RETURN(const auto weights, ModelWeights::Load(checkpoint, config, *kernels));
  const auto executor = kernels->new_executor(options.threads > 0 ? options.threads : UsableCores());
  Transformer transformer(config, *weights, *kernels, *executor, Dtype::kBf16, kChunk, kChunk);
  HeadProbe probe({.sink_tokens = options.sinks, .recent_tokens = options.recent, .queries_per_text = options.queries},
                  config.kv_layout(Dtype::kBf16), transformer, *kernels, *executor);

  HeadProfile profile{.model_digest = checkpoint->Digest(),
                      .num_layers = config.num_kv_layers(),
                      .num_kv_heads = config.num_kv_heads,
                      .sink_tokens = options.sinks,
                      .recent_tokens = options.recent};
  const auto longest = static_cast<uint32_t>(std::min<int64_t>(options.tokens, config.max_context_tokens));
  TokenProgress progress(line, texts);
  for (const ProfileText& text : texts) {
    WINNOW_ASSIGN_OR_RETURN(const uint64_t tokens, MeasureText(text, longest, transformer, probe, progress));
    if (tokens == 0) {
      line.WriteAbove(absl::StrCat(text.name, ": left out, ", text.tokens.size(), " tokens are too few\n"));
      continue;
    }
    line.WriteAbove(absl::StrCat(text.name, ": ", tokens, " tokens\n"));
    profile.texts.push_back(text.name);
    profile.tokens += tokens;
  }
  profile.queries = probe.queries();
  if (profile.queries == 0) {
    return absl::InvalidArgumentError(absl::StrCat("the texts are too short: none has tokens outside ", options.sinks,
                                                   " sinks and ", options.recent, " recent rows"));
  }
  profile.heads = probe.Heads(options.streaming_below);
  return profile;
}

absl::Status Run(const ProfileOptions& options, const std::vector<std::string>& files) {
  if (options.model.empty()) return absl::InvalidArgumentError("--model DIR is required");
  if (options.out.empty()) return absl::InvalidArgumentError("--out FILE is required");
  WINNOW_RETURN_IF_ERROR(CheckWritable(options.out));
  WINNOW_ASSIGN_OR_RETURN(const HeadProfile profile, Measure(options, files));
  PrintTable(profile);
  std::ofstream out(options.out, std::ios::binary);
  out << profile.ToJson();
  out.close();
  if (!out) return absl::UnavailableError(absl::StrCat("cannot write ", options.out));
  std::printf(
      "Measured %llu queries in %llu tokens, written to %s. To use it:\n"
      "  winnow up --model %s --head-profile %s --selection winnow,profile_use=budgets\n",
      static_cast<unsigned long long>(profile.queries), static_cast<unsigned long long>(profile.tokens),
      options.out.c_str(), options.model.c_str(), options.out.c_str());
  return absl::OkStatus();
}

int ProfileHeadsMain(const Arguments& arguments) {
  ProfileOptions options;
  std::vector<std::string> files;
  if (const auto code = ParseCommandLine(kProfileHeadsCommand, arguments, options, &files)) return *code;
  const absl::Status status = Run(options, files);
  if (status.ok()) return 0;
  return Fail(kProfileHeadsCommand, status, absl::IsInvalidArgument(status) ? 2 : 1);
}

}  // namespace

const Command kProfileHeadsCommand = {
    .name = "profile-heads",
    .summary = "measure on sample text how much of the context each head of a model needs",
    .synopsis = "--model DIR --out FILE [--option=value ...] [TEXT-FILE...]",
    .about = kProfileHeadsAbout,
    .operands = {.files = true},
    .options = Declared<ProfileOptions>,
    .run = ProfileHeadsMain};

}  // namespace winnow
