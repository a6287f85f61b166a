#include <cstdio>

#include "cmd/client/demo_document.h"
#include "cmd/client/generation_client.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/connection/server_options.h"
#include "common/base/stop_signals.h"

namespace winnow {
namespace {

struct DemoOptions {
  ServerOptions server;
  bool once = false;
  uint32_t budget = 256;
  std::string selection;
  uint64_t seed = 1;
  uint32_t characters = 16'500;
  int facts = 16;

  void Declare(Fields& fields) {
    server.Declare(fields);
    fields.Bool("once", &once, "Ask one question and end; otherwise five, each about another text.");
    fields.Integer("budget", &budget, "Selected rows per head; 0 = the server's default.");
    fields.Text("selection", &selection,
                "Preset or specification, preset[,field=value...]; empty = the server's default.");
    fields.Integer("seed", &seed, "Another seed makes another text.");
    fields.Integer("characters", &characters, "Length of the text; about four make a token.", 500u, 4'000'000u);
    fields.Integer("facts", &facts, "Facts in the text; one of them is asked for.", 1, 1000);
  }
};

// Asks one question; true when the answer was right.
absl::StatusOr<bool> Ask(GenerationClient& client, const DemoOptions& options, uint64_t seed) {
  const DemoDocument document = MakeDemoDocument(seed, options.characters, options.facts);
  v1::GenerateRequest request;
  v1::Message* message = request.mutable_messages()->add_messages();
  message->set_role("user");
  message->set_content(document.text + "\n\n" + document.question);
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(48);
  if (options.budget > 0) request.mutable_selection()->set_budget_tokens(options.budget);
  if (!options.selection.empty()) request.mutable_selection()->set_specification(options.selection);

  std::printf("A text of %zu characters hides %d codes among sentences about software.\n\n", document.text.size(),
              options.facts);
  std::printf("Question  %s\nAnswer    ", document.question.c_str());
  std::fflush(stdout);
  WINNOW_ASSIGN_OR_RETURN(const GenerationResult result, client.Generate(request, [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }));
  const bool right = result.text == document.answer;
  if (right) {
    std::printf("\n          (right)\n\n");
  } else {
    std::printf("\n          (wrong: the text says \"%s\")\n\n", document.answer.c_str());
  }
  std::printf("%s\n", DescribeStats(result).c_str());
  return right;
}

int DemoMain(const Arguments& arguments) {
  DemoOptions options;
  if (const auto code = ParseCommandLine(kDemoCommand, arguments, options)) return *code;
  BlockStopSignals();
  const absl::StatusOr<Credentials> credentials = options.server.security.Load();
  if (!credentials.ok()) return Fail(kDemoCommand, credentials.status(), kExitUsage);
  GenerationClient client(options.server.address.ToString(), options.server.api_key, *credentials);
  const int rounds = options.once ? 1 : 5;
  int right = 0;
  for (int round = 0; round < rounds; ++round) {
    const absl::StatusOr<bool> answer = Ask(client, options, options.seed + round);
    if (!answer.ok()) {
      std::printf("\n");
      if (absl::IsCancelled(answer.status())) return kExitInterrupted;
      return Fail(kDemoCommand, WithServerHint(answer.status()));
    }
    right += *answer;
  }
  if (!options.once) std::printf("%d of %d answers are right.\n", right, rounds);
  return right == rounds ? kExitOk : kExitFailure;
}

}  // namespace

const Command kDemoCommand = {
    .name = "demo",
    .summary = "",
    .synopsis = "[--option=value ...]",
    .about = "Asks a running server about a made-up text that hides some codes, and checks the answers.\n",
    .environment = Environment::kRead,
    .options = Declared<DemoOptions>,
    .run = DemoMain};

}  // namespace winnow
