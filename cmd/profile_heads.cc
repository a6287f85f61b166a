#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

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
    fields.Text("text", &text, "Text files to measure on, separated by commas; further ones may follow the options.");
    fields.Text("prompts", &prompts, "JSONL file, one object with a \"prompt\" a line, each a text of its own.");
    fields.Text("out", &out, "File to write. Required.");
    fields.Integer("tokens", &tokens,
                   "Longest piece of a text that is run at once; longer texts are cut into such pieces. Longer pieces "
                   "show more of what heads look for, and take longer.",
                   256u, 1u << 20);
    fields.Integer("queries", &queries, "Positions measured of each piece, spread over its last half.", 1u, 65536u);
    fields.Number("mass", &mass, "Captured mass that budget shares are for: 0.9, 0.95 or 0.98.", 0, 1);
    fields.Number("streaming-below", &streaming_below,
                  "A head whose mass outside sinks and recent rows is below this share streams.", 0, 1);
    fields.Integer("sinks", &sinks, "First positions that are always attended.", 0u, 4096u);
    fields.Integer("recent", &recent, "Newest positions that are always attended.", 1u, 65536u);
    fields.Integer("threads", &threads, "Compute threads; 0 = one per core.", 0, 1024);
  }
};

struct Text {
  std::string name;
  std::vector<uint32_t> tokens;
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
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

// By layer: what lies under sinks and recent rows, what the rest takes, and what follows for the budgets.
void PrintTable(const HeadProfile& profile, size_t budget_mass) {
  std::printf("layer  kv head  window mass  tokens for %.2f / %.2f / %.2f     budget\n", HeadProfile::kMasses[0],
              HeadProfile::kMasses[1], HeadProfile::kMasses[2]);
  int streaming = 0;
  for (size_t list = 0; list < profile.heads.size(); ++list) {
    const HeadProfile::Head& head = profile.heads[list];
    streaming += head.streaming;
    std::printf("%5zu  %7zu  %11.3f  %9.1f %8.1f %8.1f  %8.2f x%s\n", list / profile.num_kv_heads,
                list % profile.num_kv_heads, head.window_mass, head.tokens_needed[0], head.tokens_needed[1],
                head.tokens_needed[2], head.budget_share * static_cast<double>(profile.heads.size()),
                head.streaming ? "  streams" : "");
  }
  std::printf("%d of %zu heads stream; budgets are for a mass of %.2f, 1.00 x = the same for all heads\n", streaming,
              profile.heads.size(), HeadProfile::kMasses[budget_mass]);
}

absl::Status Profile(const ProfileOptions& options, const std::vector<std::string>& files) {
  if (options.model.empty()) return absl::InvalidArgumentError("--model DIR is required");
  if (options.out.empty()) return absl::InvalidArgumentError("--out FILE is required");
  size_t budget_mass = 0;
  while (budget_mass < HeadProfile::kMasses.size() && std::abs(HeadProfile::kMasses[budget_mass] - options.mass) > 1e-9)
    ++budget_mass;
  if (budget_mass == HeadProfile::kMasses.size()) return absl::InvalidArgumentError("--mass must be 0.9, 0.95 or 0.98");

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
    profile.texts.push_back(text.name);
    for (size_t begin = 0; begin < text.tokens.size(); begin += longest) {
      const auto count = static_cast<uint32_t>(std::min<size_t>(longest, text.tokens.size() - begin));
      // The rest of a text may be too short to have anything between sinks and recent rows.
      if (HeadProbe::SampledPositions(probe_options, count).empty()) continue;
      WINNOW_RETURN_IF_ERROR(probe.BeginText(count));
      for (uint32_t first = 0; first < count; first += kChunk) {
        const uint32_t rows = std::min(kChunk, count - first);
        probe.BeginChunk(first, rows);
        transformer.Prefill({text.tokens.data() + begin + first, rows}, first, /*last=*/false, probe);
      }
      profile.tokens += count;
    }
  }
  profile.queries = probe.queries();
  if (profile.queries == 0) {
    return absl::InvalidArgumentError(absl::StrCat("the texts are too short: none has tokens outside ", options.sinks,
                                                   " sinks and ", options.recent, " recent rows"));
  }
  profile.heads = probe.Heads(budget_mass, options.streaming_below);
  PrintTable(profile, budget_mass);
  std::ofstream out(options.out, std::ios::binary);
  out << profile.ToJson();
  out.close();
  if (!out) return absl::UnavailableError(absl::StrCat("cannot write ", options.out));
  std::printf("measured %llu queries in %llu tokens; written to %s\n", static_cast<unsigned long long>(profile.queries),
              static_cast<unsigned long long>(profile.tokens), options.out.c_str());
  return absl::OkStatus();
}

}  // namespace

int ProfileHeadsMain(const Arguments& arguments) {
  ProfileOptions options;
  std::vector<std::string> files;
  if (const auto code = ParseCommandLine("profile-heads", "--model DIR --out FILE [--option=value ...] TEXT-FILE...",
                                         arguments, options, &files)) {
    return *code;
  }
  const absl::Status status = Profile(options, files);
  if (status.ok()) return 0;
  return Fail("profile-heads", status, absl::IsInvalidArgument(status) ? 2 : 1);
}

}  // namespace winnow
