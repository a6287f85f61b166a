#include <cstdio>
#include <iostream>
#include <iterator>

#include "cmd/client/client_security.h"
#include "cmd/client/generation_client.h"
#include "cmd/command_line.h"
#include "cmd/commands.h"

namespace winnow {
namespace {

struct GenerateOptions {
  HostPort grpc{"127.0.0.1", 8001};
  std::string api_key;
  ClientSecurity security;
  uint32_t max_tokens = 0;
  double temperature = -1;
  std::string selection;
  uint32_t budget = 0;
  bool raw = false;
  bool stats = false;

  void Declare(Fields& fields) {
    fields.Address("grpc", &grpc, "gRPC address of the server.");
    fields.Text(
        "api-key", &api_key,
        "For a server with keys. Better in the environment (WINNOW_API_KEY): command lines are seen by others.");
    security.Declare(fields);
    fields.Integer("max-tokens", &max_tokens, "Most tokens to generate; 0 = what is left of the context.");
    fields.Number("temperature", &temperature, "0 = greedy; negative = the server's default.", -1, 100);
    fields.Text("selection", &selection,
                "Preset or specification, preset[,field=value...] or field=value[,...]; fields that are fixed when the "
                "server starts stay the server's. Empty = the server's default.");
    fields.Integer("budget", &budget, "Selected rows per head; 0 = that of the selection.");
    fields.Bool("raw", &raw, "Send the prompt as it is, without the chat template.");
    fields.Bool("stats", &stats, "Print usage, times and how the selection did to stderr.");
  }
};

v1::GenerateRequest MakeRequest(const GenerateOptions& options, std::string prompt) {
  v1::GenerateRequest request;
  if (options.raw) {
    request.set_text(std::move(prompt));
  } else {
    v1::Message* message = request.mutable_messages()->add_messages();
    message->set_role("user");
    message->set_content(std::move(prompt));
  }
  if (options.max_tokens > 0) request.set_max_tokens(options.max_tokens);
  if (options.temperature >= 0) request.mutable_sampling()->set_temperature(static_cast<float>(options.temperature));
  if (!options.selection.empty()) request.mutable_selection()->set_specification(options.selection);
  if (options.budget > 0) request.mutable_selection()->set_budget_tokens(options.budget);
  return request;
}

}  // namespace

int GenerateMain(const Arguments& arguments) {
  GenerateOptions options;
  std::vector<std::string> positionals;
  if (const auto code =
          ParseCommandLine("generate", "[--option=value ...] PROMPT   (\"-\" reads the prompt from stdin)", arguments,
                           options, &positionals, Environment::kRead)) {
    return *code;
  }
  if (positionals.size() != 1) {
    return Fail("generate", absl::InvalidArgumentError("give one prompt, or \"-\" to read it from stdin"), 2);
  }
  std::string prompt = positionals.front();
  if (prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  BlockStopSignals();
  const absl::StatusOr<Credentials> credentials = options.security.Load();
  if (!credentials.ok()) return Fail("generate", credentials.status(), 2);
  GenerationClient client(options.grpc.ToString(), options.api_key, *credentials);
  bool wrote = false;
  const absl::StatusOr<GenerationResult> result =
      client.Generate(MakeRequest(options, std::move(prompt)), [&wrote](std::string_view text) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
        wrote = true;
      });
  if (wrote || result.ok()) std::printf("\n");
  if (!result.ok()) {
    if (absl::IsCancelled(result.status())) return 130;  // as a shell reports Ctrl-C
    return Fail("generate", result.status());
  }
  if (options.stats) {
    std::fprintf(stderr, "%s", DescribeStats(*result).c_str());
    std::fprintf(stderr, "  ended by               %s\n",
                 result->reason == v1::FINISH_REASON_LENGTH ? "length" : "stop");
  }
  return 0;
}

}  // namespace winnow
