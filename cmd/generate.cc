#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cmd/client/generation_client.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/connection/document.h"
#include "cmd/connection/print_answer.h"
#include "cmd/connection/request_options.h"
#include "cmd/connection/server_options.h"
#include "cmd/terminal/progress_line.h"
#include "common/base/json.h"
#include "common/base/stop_signals.h"

namespace winnow {
namespace {

constexpr char kGenerateAbout[] =
    "Prints the answer, as it is made, and nothing else on stdout. The prompt is the texts of --file and then PROMPT,\n"
    "with an empty line between; \"-\" stands for what is on stdin, which is also read where neither is given and "
    "stdin\n"
    "is no terminal.\n";

struct GenerateOptions {
  ServerOptions server;
  std::string files;
  std::string system;
  RequestOptions request;
  bool raw = false;
  bool json = false;
  bool stats = false;
  bool quiet = false;

  void Declare(Fields& fields) {
    server.Declare(fields);
    fields.File("file", &files, "Texts that the prompt begins with, separated by commas.");
    fields.Text("system", &system, "What the model is told to be and to do, before the prompt.");
    request.Declare(fields);
    fields.Bool("raw", &raw, "Send the prompt as it is, without the chat template.");
    fields.Bool("json", &json, "Print one JSON object when the answer is whole: text, usage, times and selection.");
    fields.Bool("stats", &stats, "Print usage, times and how the selection did to stderr.");
    fields.Bool("quiet", &quiet, "No progress on stderr.");
  }
};

absl::StatusOr<std::string> ReadStdin() {
  std::string text(std::istreambuf_iterator<char>(std::cin), {});
  WINNOW_RETURN_IF_ERROR(CheckDocument(text, "the prompt on stdin"));
  return text;
}

absl::StatusOr<std::string> PromptOf(const GenerateOptions& options, std::vector<std::string> words) {
  std::vector<std::string> parts;
  for (const absl::string_view path : absl::StrSplit(options.files, ',', absl::SkipEmpty())) {
    WINNOW_ASSIGN_OR_RETURN(parts.emplace_back(), ReadDocument(std::string(path)));
  }
  if (words.empty() && parts.empty() && isatty(STDIN_FILENO) == 0) words.push_back("-");
  if (words.size() > 1) return absl::InvalidArgumentError("give one prompt: quote it, if it has several words");
  if (words.size() == 1) {
    parts.push_back(words[0]);
    if (words[0] == "-") {
      WINNOW_ASSIGN_OR_RETURN(parts.back(), ReadStdin());
    }
    WINNOW_RETURN_IF_ERROR(CheckDocument(parts.back(), "the prompt"));
  }
  if (parts.empty()) {
    return absl::InvalidArgumentError("give one prompt, files with --file=FILE, or \"-\" to read it from stdin");
  }
  return absl::StrJoin(parts, "\n\n");
}

v1::GenerateRequest MakeRequest(const GenerateOptions& options, std::string prompt) {
  std::vector<std::pair<std::string, std::string>> messages;
  if (!options.system.empty()) messages.emplace_back("system", options.system);
  v1::GenerateRequest request;
  if (options.raw) {
    request = TextRequest(std::move(prompt));
  } else {
    messages.emplace_back("user", std::move(prompt));
    request = ChatRequest(messages);
  }
  options.request.ApplyTo(request);
  return request;
}

const char* NameOf(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_LENGTH ? "length" : "stop";
}

nlohmann::ordered_json ToJson(const GenerationResult& result) {
  const v1::SelectionStats& selection = result.selection;
  nlohmann::ordered_json json = {{"text", result.text},
                                 {"finish_reason", NameOf(result.reason)},
                                 {"usage",
                                  {{"prompt_tokens", result.usage.prompt_tokens()},
                                   {"cached_prompt_tokens", result.usage.cached_prompt_tokens()},
                                   {"completion_tokens", result.usage.completion_tokens()}}},
                                 {"time_to_first_token_s", result.time_to_first_token.count()},
                                 {"time_per_output_token_s", result.SecondsPerToken()},
                                 {"selection",
                                  {{"specification", result.specification},
                                   {"context_tokens", selection.context_tokens()},
                                   {"resident_rows", selection.resident_rows()},
                                   {"decode_steps", selection.decode_steps()},
                                   {"streamed_rows", selection.streamed_rows()},
                                   {"streamed_bytes", selection.streamed_bytes()}}}};
  if (selection.has_captured_mass_mean()) {
    json["selection"]["captured_mass_mean"] = selection.captured_mass_mean();
    json["selection"]["captured_mass_p5"] = selection.captured_mass_p5();
  }
  return json;
}

int GenerateMain(const Arguments& arguments) {
  GenerateOptions options;
  std::vector<std::string> words;
  if (const auto code = ParseCommandLine(kGenerateCommand, arguments, options, &words)) return *code;
  if (options.raw && !options.system.empty()) {
    return Fail(kGenerateCommand, absl::InvalidArgumentError("--raw has no place for --system"), kExitUsage);
  }
  absl::StatusOr<std::string> prompt = PromptOf(options, std::move(words));
  if (!prompt.ok()) return Fail(kGenerateCommand, prompt.status(), kExitUsage);
  const absl::StatusOr<Credentials> credentials = options.server.security.Load();
  if (!credentials.ok()) return Fail(kGenerateCommand, credentials.status(), kExitUsage);
  BlockStopSignals();
  GenerationClient client(options.server.address.ToString(), options.server.api_key, *credentials);
  ProgressLine progress(options.quiet);
  const absl::StatusOr<GenerationResult> result =
      PrintAnswer(client, MakeRequest(options, *std::move(prompt)), progress, "", options.json ? nullptr : stdout)
          .result;
  if (!result.ok()) {
    if (absl::IsCancelled(result.status())) return kExitInterrupted;
    return Fail(kGenerateCommand, WithServerHint(result.status()));
  }
  if (options.json) std::printf("%s\n", ToJson(*result).dump(2).c_str());
  if (options.stats) {
    std::fprintf(stderr, "%s  ended by               %s\n", DescribeStats(*result).c_str(), NameOf(result->reason));
  }
  return kExitOk;
}

}  // namespace

const Command kGenerateCommand = {.name = "generate",
                                  .summary = "send a prompt to a running server and stream the answer",
                                  .synopsis = "[--option=value ...] [PROMPT | -]",
                                  .about = kGenerateAbout,
                                  .environment = Environment::kRead,
                                  .options = Declared<GenerateOptions>,
                                  .run = GenerateMain};

}  // namespace winnow
