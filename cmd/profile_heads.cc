#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cmd/command_line.h"
#include "cmd/commands.h"
#include "cmd/machine.h"
#include "common/model/checkpoint.h"
#include "inference_rank/head_probe.h"
#include "router/text/tokenizer.h"

namespace winnow {
namespace {

constexpr char kUsage[] =
    "--model DIR --out FILE [--option=value ...] TEXT-FILE...\n\n"
    "Runs texts through a model and measures how much of the context each (layer, kv head) attends to. Servers that\n"
    "are started with --head-profile FILE can share out their budget by it and keep nothing but sinks and recent\n"
    "rows of heads that need no more (profile_use=budgets, streaming, budgets-and-streaming). Take texts like those\n"
    "that will be asked about, with questions: heads that look things up show it only where there is something to\n"
    "look up. docs/selection.md says more.";

struct ProfileOptions {
  std::string model;
  std::string text;
  std::string prompts;
  std::string out;
  uint32_t tokens = 8192;
  uint32_t queries = 64;
  double mass = 0.95;
  double streaming_below = 0.05;
  uint32_t sinks = 4;
  uint32_t recent = 64;
  int threads = 0;

  void Declare(Fields& fields) {
    fields.Text("model", &model, "Folder of the model (config.json, tokenizer.json, safetensors). Required.");
    fields.Text("text", &text, "Text files to measure on, separated by commas; others may follow the options.");
    fields.Text("prompts", &prompts, "JSONL file, one object with a \"prompt\" a line, each a text of its own.");
    fields.Text("out", &out, "File to write. Required.");
    fields.Integer(
        "tokens", &tokens,
        "Longest piece of a text that is run at once; longer texts are cut into pieces of one length. Longer "
        "pieces show more of what heads look for; time grows a little faster than their length.",
        256u, 1u << 20);
    fields.Integer("queries", &queries, "Positions measured of each piece, spread over its last half.", 1u, 65536u);
    fields.Number("mass", &mass, "Captured mass that budgets are to reach: 0.9, 0.95 or 0.98.", 0, 1);
    fields.Number(
        "streaming-below", &streaming_below,
        "A head streams when less than this share of its attention, in the mean, lies outside sinks and recent "
        "rows.",
        0, 1);
    fields.Integer("sinks", &sinks, "First positions that are always attended, as the server will have them.", 0u,
                   4096u);
    fields.Integer("recent", &recent, "Newest positions that are always attended, as the server will have them.", 1u,
                   65536u);
    fields.Integer("threads", &threads, "Compute threads; 0 = one per core.", 0, 1024);
  }
};

struct Text {
  std::string name;
  std::vector<uint32_t> tokens;
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": it is a folder"));
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

absl::StatusOr<std::vector<Text>> ReadTexts(const ProfileOptions& options, const std::vector<std::string>& files) {
  WINNOW_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(options.model + "/tokenizer.json"));
  std::vector<std::pair<std::string, std::string>> sources;  // name, contents
  std::vector<std::string> paths = absl::StrSplit(options.text, ',', absl::SkipEmpty());
  paths.insert(paths.end(), files.begin(), files.end());
  for (const std::string& path : paths) {
    WINNOW_ASSIGN_OR_RETURN(std::string contents, ReadFile(path));
    sources.emplace_back(path, std::move(contents));
  }
  if (!options.prompts.empty()) {
    WINNOW_ASSIGN_OR_RETURN(const std::string contents, ReadFile(options.prompts));
    int line = 0;
    for (const absl::string_view text : absl::StrSplit(contents, '\n')) {
      ++line;
      if (text.empty()) continue;
      const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object() || !json.contains("prompt") || !json["prompt"].is_string()) {
        return absl::InvalidArgumentError(absl::StrCat(options.prompts, ":", line, ": no object with a \"prompt\""));
      }
      sources.emplace_back(absl::StrCat(options.prompts, ":", line), json["prompt"].get<std::string>());
    }
  }
  std::vector<Text> texts;
  for (const auto& [name, contents] : sources) {
    absl::StatusOr<std::vector<uint32_t>> tokens = tokenizer->Encode(contents, /*add_special_tokens=*/true);
    if (!tokens.ok()) return Annotate(tokens.status(), name);
    texts.push_back({name, *std::move(tokens)});
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
  const auto& masses = HeadProfile::kMasses;
  std::printf("layer  kv head  window mass   rows for %.2f  for %.2f  for %.2f   budget\n", masses[0], masses[1],
              masses[2]);
  int streaming = 0;
  for (size_t list = 0; list < profile.heads.size(); ++list) {
    const HeadProfile::Head& head = profile.heads[list];
    streaming += head.streaming;
    std::printf("%5zu  %7zu  %11.3f  %14.1f  %8.1f  %8.1f  %5.2f x%s\n", list / profile.num_kv_heads,
                list % profile.num_kv_heads, head.window_mass, head.tokens_needed[0], head.tokens_needed[1],
                head.tokens_needed[2], head.budget_share * static_cast<double>(profile.heads.size()),
                head.streaming ? "  streams" : "");
  }
  std::printf(
      "\nwindow mass: share of the attention under %u sinks and %u recent rows, in the mean over queries.\n"
      "rows for a mass: how many others, the best ones, it takes besides. budget: what the head gets of the sum for a\n"
      "mass of %.2f; 1.00 x is as much as every head has without a profile. %d of %zu heads stream.\n",
      profile.sink_tokens, profile.recent_tokens, profile.budget_mass, streaming, profile.heads.size());
}

// A text in pieces of one length, at most `longest`.
std::vector<std::span<const uint32_t>> Pieces(std::span<const uint32_t> tokens, uint32_t longest) {
  const size_t count = (tokens.size() + longest - 1) / longest;
  std::vector<std::span<const uint32_t>> pieces;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = tokens.size() * i / count, end = tokens.size() * (i + 1) / count;
    pieces.push_back(tokens.subspan(begin, end - begin));
  }
  return pieces;
}

absl::Status Profile(const ProfileOptions& options, const std::vector<std::string>& files) {
  if (options.model.empty()) return absl::InvalidArgumentError("--model DIR is required");
  if (options.out.empty()) return absl::InvalidArgumentError("--out FILE is required");
  size_t budget_mass = 0;
  while (budget_mass < HeadProfile::kMasses.size() && std::abs(HeadProfile::kMasses[budget_mass] - options.mass) > 1e-9)
    ++budget_mass;
  if (budget_mass == HeadProfile::kMasses.size()) return absl::InvalidArgumentError("--mass must be 0.9, 0.95 or 0.98");

  WINNOW_RETURN_IF_ERROR(CheckWritable(options.out));
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.model));
  WINNOW_ASSIGN_OR_RETURN(const std::vector<Text> texts, ReadTexts(options, files));
  WINNOW_ASSIGN_OR_RETURN(const KernelTable* kernels, CpuKernels("auto"));
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> opened, Checkpoint::Open(options.model));
  const std::shared_ptr<const Checkpoint> checkpoint = std::move(opened);
  WINNOW_ASSIGN_OR_RETURN(const auto weights, ModelWeights::Load(checkpoint, config, *kernels));
  const auto executor = kernels->new_executor(options.threads > 0 ? options.threads : UsableCores());
  constexpr uint32_t kChunk = 512;
  Transformer transformer(config, *weights, *kernels, *executor, Dtype::kBf16, kChunk, kChunk);

  const HeadProbe::Options probe_options{
      .sink_tokens = options.sinks, .recent_tokens = options.recent, .queries_per_text = options.queries};
  const KvLayout layout = config.kv_layout(Dtype::kBf16);
  HeadProbe probe(probe_options, layout, transformer, *kernels, *executor);
  HeadProfile profile{.model_digest = checkpoint->Digest(),
                      .num_layers = config.num_layers,
                      .num_kv_heads = config.num_kv_heads,
                      .sink_tokens = options.sinks,
                      .recent_tokens = options.recent,
                      .budget_mass = HeadProfile::kMasses[budget_mass]};
  const auto longest = static_cast<uint32_t>(std::min<int64_t>(options.tokens, config.max_context_tokens));
  for (const Text& text : texts) {
    const uint64_t tokens_before = profile.tokens;
    for (const std::span<const uint32_t> piece : Pieces(text.tokens, longest)) {
      const auto count = static_cast<uint32_t>(piece.size());
      if (HeadProbe::SampledPositions(probe_options, count).empty()) continue;  // nothing outside of sinks and window
      WINNOW_RETURN_IF_ERROR(probe.BeginText(count));
      for (uint32_t first = 0; first < count; first += kChunk) {
        const uint32_t rows = std::min(kChunk, count - first);
        probe.BeginChunk(first, rows);
        transformer.Prefill(piece.subspan(first, rows), first, /*last=*/false, probe);
      }
      profile.tokens += count;
    }
    if (profile.tokens == tokens_before) {
      std::fprintf(stderr, "winnow profile-heads: %s is left out: %zu tokens are too few\n", text.name.c_str(),
                   text.tokens.size());
      continue;
    }
    profile.texts.push_back(text.name);
    std::fprintf(stderr, "%s: %llu tokens\n", text.name.c_str(),
                 static_cast<unsigned long long>(profile.tokens - tokens_before));
  }
  profile.queries = probe.queries();
  if (profile.queries == 0) {
    return absl::InvalidArgumentError(absl::StrCat("the texts are too short: none has tokens outside ", options.sinks,
                                                   " sinks and ", options.recent, " recent rows"));
  }
  profile.heads = probe.Heads(budget_mass, options.streaming_below);
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

}  // namespace

int ProfileHeadsMain(const Arguments& arguments) {
  ProfileOptions options;
  std::vector<std::string> files;
  if (const auto code = ParseCommandLine("profile-heads", kUsage, arguments, options, &files)) {
    return *code;
  }
  const absl::Status status = Profile(options, files);
  if (status.ok()) return 0;
  return Fail("profile-heads", status, absl::IsInvalidArgument(status) ? 2 : 1);
}

}  // namespace winnow
