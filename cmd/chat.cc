// winnow chat: a conversation in the terminal.
#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cmd/chat/chat_command.h"
#include "cmd/chat/conversation.h"
#include "cmd/client/generation_client.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/connection/document.h"
#include "cmd/connection/print_answer.h"
#include "cmd/connection/request_options.h"
#include "cmd/connection/server_options.h"
#include "cmd/terminal/line_editor.h"
#include "cmd/terminal/progress_line.h"
#include "common/base/stop_signals.h"

namespace winnow {
namespace {

constexpr char kChatAbout[] =
    "A conversation in the terminal. Lines are edited and remembered; a backslash at the end continues one, and a\n"
    "pasted document of any length is one message. Ctrl-C ends an answer, Ctrl-D the chat; /help lists the commands.\n"
    "Where stdin is no terminal each of its lines is a message, and the first error ends the chat.\n";

constexpr std::string_view kNoHistory = "off";

struct ChatOptions {
  ServerOptions server;
  std::string files;
  std::string system;
  RequestOptions request;
  bool stats = false;
  std::string history;
  bool quiet = false;

  void Declare(Fields& fields) {
    server.Declare(fields);
    fields.File("file", &files, "Texts that the first message begins with, separated by commas.");
    fields.Text("system", &system, "What the model is told to be and to do.");
    request.Declare(fields);
    fields.Bool("stats", &stats, "A line of figures after every answer: captured mass, tokens per second.");
    fields.File("history", &history,
                "File that keeps the lines that were typed; off = none. Empty = $XDG_STATE_HOME/winnow/chat_history, "
                "or below ~/.local/state.");
    fields.Bool("quiet", &quiet, "No progress and no greeting on stderr.");
  }

  std::string HistoryFile() const {
    if (history == kNoHistory) return "";
    return history.empty() ? DefaultHistoryFile() : history;
  }
};

// Stop signals are blocked in all threads, for GenerationClient. While a line is read nothing needs to be ended
// cleanly, and they end the process.
class StopSignalsAllowed {
 public:
  StopSignalsAllowed() {
    // Those of a hasty person were for the answer. Being told to end was meant.
    for (int number; (number = StopSignalWithin(std::chrono::milliseconds(0))) != 0;) {
      if (number != SIGINT) EndByStopSignal(number);
    }
    const sigset_t set = StopSignals();
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  }
  ~StopSignalsAllowed() { BlockStopSignals(); }
  StopSignalsAllowed(const StopSignalsAllowed&) = delete;
  StopSignalsAllowed& operator=(const StopSignalsAllowed&) = delete;
};

// "captured mass 0.934, 41.2 tokens/s, first token after 0.31 s, 4012 prompt tokens, of them 3980 cached".
std::string FiguresOf(const GenerationResult& result) {
  std::string text;
  if (result.selection.has_captured_mass_mean()) {
    absl::StrAppendFormat(&text, "captured mass %.4f, ", result.selection.captured_mass_mean());
  }
  if (result.SecondsPerToken() > 0) absl::StrAppendFormat(&text, "%.1f tokens/s, ", 1 / result.SecondsPerToken());
  absl::StrAppendFormat(&text, "first token after %.2f s, %d prompt tokens", result.time_to_first_token.count(),
                        result.usage.prompt_tokens());
  if (result.usage.cached_prompt_tokens() > 0) {
    absl::StrAppendFormat(&text, ", of them %d cached", result.usage.cached_prompt_tokens());
  }
  return text;
}

class Chat {
 public:
  Chat(const ChatOptions& options, const Credentials& credentials)
      : options_(options),
        request_(options.request),
        stats_(options.stats),
        client_(options.server.address.ToString(), options.server.api_key, credentials),
        editor_(options.HistoryFile()),
        progress_(options.quiet) {
    conversation_.set_system(options.system);
  }

  absl::Status Attach(const std::string& path) {
    WINNOW_ASSIGN_OR_RETURN(std::string text, ReadDocument(path));
    conversation_.Attach(std::move(text));
    return absl::OkStatus();
  }

  // Until its end; an error ends a chat without a person.
  absl::Status Run() {
    if (editor_.is_terminal() && !options_.quiet) {
      std::fprintf(stderr, "Chat with %s. /help lists the commands, Ctrl-D leaves.\n",
                   options_.server.address.ToString().c_str());
    }
    while (!done_) {
      const std::optional<std::string> line = ReadMessage();
      if (!line.has_value()) break;
      const absl::Status status = Take(*line);
      if (status.ok()) continue;
      if (!editor_.is_terminal()) return status;
      std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    }
    return absl::OkStatus();
  }

 private:
  // Lines up to one that no backslash continues; absent at the end of all.
  std::optional<std::string> ReadMessage() {
    const StopSignalsAllowed allowed;
    std::string text;
    for (const char* prompt = "> ";; prompt = ". ") {
      LineEditor::Line line = editor_.Read(prompt);
      if (line.end == LineEditor::End::kEndOfInput) {
        if (editor_.is_terminal()) std::printf("\n");
        return std::nullopt;
      }
      if (line.end == LineEditor::End::kInterrupted) return "";
      const bool more = line.text.ends_with('\\');
      if (more) line.text.back() = '\n';
      text += line.text;
      if (!more) return text;
    }
  }

  absl::Status Take(const std::string& line) {
    if (line.empty()) return absl::OkStatus();
    WINNOW_ASSIGN_OR_RETURN(const std::optional<ChatCommand> command, ParseChatCommand(line));
    return command.has_value() ? Obey(*command) : Ask(MessageOf(line));
  }

  absl::Status Ask(const std::string& message) {
    WINNOW_RETURN_IF_ERROR(CheckDocument(message, "the message"));
    v1::GenerateRequest request = conversation_.Ask(message);
    request_.ApplyTo(request);
    auto [answer, result] = PrintAnswer(client_, request, progress_, " (Ctrl-C ends it)", stdout);
    conversation_.Answer(std::move(answer));
    if (absl::IsCancelled(result.status()) && editor_.is_terminal()) {
      std::fprintf(stderr, "(ended)\n");
      return absl::OkStatus();
    }
    if (!result.ok()) return WithServerHint(result.status());
    last_ = *std::move(result);
    if (stats_) std::fprintf(stderr, "(%s)\n", FiguresOf(*last_).c_str());
    return absl::OkStatus();
  }

  absl::Status Obey(const ChatCommand& command) {
    switch (command.verb) {
      case ChatVerb::kFile:
        WINNOW_RETURN_IF_ERROR(Attach(command.operand));
        return Say(absl::StrCat(command.operand, " goes before the next message"));
      case ChatVerb::kSystem:
        conversation_.set_system(command.operand);
        return Say(command.operand.empty() ? "no system text" : "the system text is set");
      case ChatVerb::kSelection:
        request_.selection = command.operand;
        return Say(command.operand.empty() ? "the server's selection"
                                           : absl::StrCat("selection of the next answers: ", command.operand));
      case ChatVerb::kStats:
        return Stats(command.operand);
      case ChatVerb::kReset:
        conversation_.Reset();
        return Say("a new conversation");
      case ChatVerb::kSave:
        WINNOW_RETURN_IF_ERROR(conversation_.Save(command.operand));
        return Say(absl::StrCat(conversation_.num_messages(), " messages are in ", command.operand));
      case ChatVerb::kHelp:
        std::fputs(ChatCommandHelp().c_str(), stderr);
        return absl::OkStatus();
      case ChatVerb::kQuit:
        done_ = true;
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  absl::Status Stats(const std::string& operand) {
    if (operand == "on" || operand == "off") {
      stats_ = operand == "on";
      return Say(absl::StrCat("figures after every answer: ", operand));
    }
    if (!operand.empty()) return absl::InvalidArgumentError("/stats is on, off or nothing");
    if (!last_.has_value()) return absl::FailedPreconditionError("there is no answer yet");
    std::fputs(DescribeStats(*last_).c_str(), stderr);
    return absl::OkStatus();
  }

  static absl::Status Say(const std::string& text) {
    std::fprintf(stderr, "(%s)\n", text.c_str());
    return absl::OkStatus();
  }

  const ChatOptions& options_;
  RequestOptions request_;
  bool stats_;
  GenerationClient client_;
  LineEditor editor_;
  ProgressLine progress_;
  Conversation conversation_;
  std::optional<GenerationResult> last_;
  bool done_ = false;
};

int ChatMain(const Arguments& arguments) {
  ChatOptions options;
  if (const auto code = ParseCommandLine(kChatCommand, arguments, options)) return *code;
  const absl::StatusOr<Credentials> credentials = options.server.security.Load();
  if (!credentials.ok()) return Fail(kChatCommand, credentials.status(), kExitUsage);
  BlockStopSignals();
  Chat chat(options, *credentials);
  for (const absl::string_view path : absl::StrSplit(options.files, ',', absl::SkipEmpty())) {
    if (const absl::Status read = chat.Attach(std::string(path)); !read.ok()) {
      return Fail(kChatCommand, read, kExitUsage);
    }
  }
  const absl::Status status = chat.Run();
  if (absl::IsCancelled(status)) return kExitInterrupted;
  return status.ok() ? kExitOk : Fail(kChatCommand, status);
}

}  // namespace

const Command kChatCommand = {.name = "chat",
                              .summary = "talk to a running server in the terminal",
                              .synopsis = "[--option=value ...]",
                              .about = kChatAbout,
                              .environment = Environment::kRead,
                              .options = Declared<ChatOptions>,
                              .run = ChatMain};

}  // namespace winnow
