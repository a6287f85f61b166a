// What a user sees of wrong command lines: one line that names the mistake, and an exit code.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "cmd/role/process_http.h"
#include "common/base/json.h"
#include "common/config/listen_address.h"
#include "common/selection/presets.h"
#include "common/selection/spec_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cmd/winnow_process.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::StartsWith;

struct Outcome {
  int code;
  std::string output;
  std::string errors;
};

Outcome RunWinnow(const std::vector<std::string>& arguments) {
  WinnowProcess process(arguments);
  const int code = process.Wait();
  return {code, process.output(), process.errors()};
}

void ExpectOneLine(const Outcome& outcome, int code, const std::string& piece) {
  EXPECT_EQ(outcome.code, code);
  EXPECT_EQ(outcome.output, "");
  EXPECT_THAT(outcome.errors, HasSubstr(piece));
  EXPECT_EQ(std::count(outcome.errors.begin(), outcome.errors.end(), '\n'), 1) << outcome.errors;
}

const char kModel[] = "deploy/models/demo";

TEST(CommandLine, MistakesAreNamedInOneLine) {
  ExpectOneLine(RunWinnow({"dance"}), 2, "unknown command \"dance\"");
  ExpectOneLine(RunWinnow({"up"}), 2, "--model DIR is required");
  ExpectOneLine(RunWinnow({"up", "--model=/no/such/folder"}), 2, "there is no folder /no/such/folder");
  ExpectOneLine(RunWinnow({"up", "--modle=x"}), 2, "unknown option \"modle\"; did you mean \"model\"?");
  ExpectOneLine(RunWinnow({"up", "--model", kModel, "--cache-ranks=0"}), 2,
                "option \"cache-ranks\": \"0\" is outside [1, 64]");
  ExpectOneLine(RunWinnow({"up", "--model", kModel, "--selection=psychic"}), 2, "unknown selection preset \"psychic\"");
  ExpectOneLine(RunWinnow({"up", "--model", kModel, "--selection=winnow,window=99"}), 2,
                "option \"selection\": selection.window is \"99\", not a whole number in 2..32");
  ExpectOneLine(RunWinnow({"router", "--model", kModel, "--selection", "winnow,budjet=5"}), 2,
                "did you mean \"budget\"?");
  ExpectOneLine(RunWinnow({"selection", "dance"}), 2, "unknown command \"dance\"; there are: list, explain");
  ExpectOneLine(RunWinnow({"selection", "explain"}), 2, "give one specification");
  ExpectOneLine(RunWinnow({"selection", "explain", "quests"}), 2, "did you mean \"quest\"?");
  ExpectOneLine(RunWinnow({"selection", "explain", "lserve,page_tokens=64,physical_page_tokens=16"}), 2,
                "selection.physical_page_tokens must be at least page_tokens");
  ExpectOneLine(RunWinnow({"selection", "list", "surplus"}), 2, "unexpected argument \"surplus\"");
  ExpectOneLine(RunWinnow({"up", "--model", kModel, "--http=nowhere"}), 2, "option \"http\": expected HOST:PORT");
  ExpectOneLine(RunWinnow({"up", "--model", kModel, "surplus"}), 2, "unexpected argument \"surplus\"");
  ExpectOneLine(RunWinnow({"cache-rank", "--config=/no/such/file"}), 2,
                "cannot read the configuration file /no/such/file");
  ExpectOneLine(RunWinnow({"generate"}), 2, "the prompt on stdin is empty");
  ExpectOneLine(RunWinnow({"generate", "two", "words"}), 2, "give one prompt: quote it");
  ExpectOneLine(RunWinnow({"generate", "--file=/no/such/text", "sum up"}), 2, "cannot read /no/such/text");
  ExpectOneLine(RunWinnow({"generate", "--raw", "--system=be brief", "x"}), 2, "--raw has no place for --system");
  ExpectOneLine(RunWinnow({"generate", "a\xff"}), 2, "the prompt is not UTF-8 text: see byte 1");
  ExpectOneLine(RunWinnow({"generate", "--server=", "x"}), 2, "option \"server\": expected HOST or HOST:PORT");
  ExpectOneLine(RunWinnow({"chat", "--file=/no/such/text"}), 2, "cannot read /no/such/text");
  ExpectOneLine(RunWinnow({"completion", "ksh"}), 2, "name a shell: bash, zsh or fish");
  ExpectOneLine(RunWinnow({"bench", "serv"}), 2, "unknown command \"serv\"; did you mean \"serve\"?");
  ExpectOneLine(RunWinnow({"config", "check"}), 2, "give manifests to check");
  ExpectOneLine(RunWinnow({"deploy", "render", "nomad", "x.yaml"}), 2, "cannot render \"nomad\"");
  ExpectOneLine(RunWinnow({"keys", "add"}), 2, "expected FILE --name=NAME");
  ExpectOneLine(RunWinnow({"up", "--model=/tmp"}), 2,
                "holds config.json, *.safetensors and a tokenizer: tokenizer.json");
  ExpectOneLine(RunWinnow({"inference-ranks"}), 2, "did you mean \"inference-rank\"?");
  ExpectOneLine(RunWinnow({"help", "dance"}), 2, "unknown command \"dance\"");
  ExpectOneLine(RunWinnow({"up", "--zzzzzzzzzzzz=1"}), 2, "`winnow up --help` says more");
  ExpectOneLine(RunWinnow({"up", "--model", kModel, "--log-level=loud"}), 2, "unknown log level \"loud\"");
  ExpectOneLine(RunWinnow({"plan"}), 2, "give --model, or a manifest with -f");
  for (const char* role : {"router", "inference-rank"}) {
    ExpectOneLine(RunWinnow({role}), 2, "--model DIR is required");
    ExpectOneLine(RunWinnow({role, "--model=/no/such/folder"}), 2, "there is no folder /no/such/folder");
  }
}

TEST(CommandLine, ProfileHeadsNamesWhatItCannotMeasure) {
  const TempDir folder;
  const std::string out = "--out=" + folder.path() + "/profile.json", model = std::string("--model=") + kModel;
  const std::string text = folder.Write("text", std::string(1000, 'x')), few = folder.Write("few", "too short\n");
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"profile-heads", model, out});
    return RunWinnow(more);
  };
  ExpectOneLine(RunWinnow({"profile-heads", out, text}), 2, "--model DIR is required");
  ExpectOneLine(RunWinnow({"profile-heads", model, text}), 2, "--out FILE is required");
  ExpectOneLine(RunWinnow({"profile-heads", "--model=/no/such/folder", out, text}), 1, "/no/such/folder/config.json");
  ExpectOneLine(RunWinnow({"profile-heads", model, "--out=/no/such/folder/x", text}), 2,
                "--out: cannot write /no/such/folder/x");
  ExpectOneLine(run({}), 2, "give texts to measure on");
  ExpectOneLine(run({"/no/such/file"}), 1, "cannot read /no/such/file");
  ExpectOneLine(run({folder.path()}), 2, "it is a folder");
  ExpectOneLine(run({folder.Write("binary", "\xff\xfe")}), 2, "text is not UTF-8");
  ExpectOneLine(run({"--prompts=" + text}), 2, "text:1: no object with a \"prompt\"");
  const std::string too_long = R"({"prompt": ")" + std::string(200'000, '.') + R"(", "answer": "yes"})";
  ExpectOneLine(run({"--prompts=" + folder.Write("long", too_long)}), 2, "tokens exceed the model's");
  ExpectOneLine(run({"--tokens=12", text}), 2, "option \"tokens\": \"12\" is outside [256, 1048576]");
  ExpectOneLine(run({"--streaming-below=7", text}), 2, "option \"streaming-below\": \"7\" is outside [0, 1]");
  const Outcome too_short = run({few});
  EXPECT_EQ(too_short.code, 2);
  EXPECT_THAT(too_short.errors, HasSubstr("the texts are too short: none has tokens outside 4 sinks and 64 recent"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/profile.json")) << "nothing is left behind";
}

TEST(CommandLine, ATakenPortStartsNothing) {
  const auto ok = [] { return absl::OkStatus(); };
  const auto owner =
      ProcessHttp::Start({"127.0.0.1", 0}, std::make_shared<MetricsRegistry>(), {.ready = ok, .live = ok});
  ASSERT_TRUE(owner.ok()) << owner.status();
  const std::string address = (*owner)->address();
  ExpectOneLine(RunWinnow({"up", "--model", kModel, "--http", address, "--grpc=127.0.0.1:0", "--metrics=127.0.0.1:0"}),
                1, "address " + address + " is in use");
}

TEST(CommandLine, HelpIsOnStdout) {
  for (const char* command :
       {"up", "router", "inference-rank", "cache-rank", "generate", "chat", "batch", "doctor", "demo", "selection",
        "profile-heads", "config", "deploy", "keys", "bench", "completion", "help"}) {
    const Outcome outcome = RunWinnow({command, "--help"});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.output, HasSubstr(std::string("usage: winnow ") + command));
    EXPECT_EQ(outcome.errors, "");
  }
  EXPECT_THAT(RunWinnow({"up", "--help"}).output,
              AllOf(HasSubstr("--cache-ranks=INT   (default 1)"), HasSubstr("--config=FILE")));
  EXPECT_EQ(RunWinnow({"help", "up"}).output, RunWinnow({"up", "--help"}).output);
  EXPECT_EQ(RunWinnow({"help", "bench", "serve"}).output, RunWinnow({"bench", "serve", "--help"}).output);
  for (const char* asking : {"help", "--help", "-h"}) {
    EXPECT_THAT(RunWinnow({asking}).output,
                HasSubstr("Exit codes: 0 done, 1 failed, 2 the command line is wrong, 130 "));
  }
  EXPECT_EQ(RunWinnow({}).code, 2);
  EXPECT_EQ(RunWinnow({"--version"}).output, RunWinnow({"version"}).output);
}

TEST(CommandLine, SelectionListDescribesEveryPreset) {
  const Outcome text = RunWinnow({"selection", "list"});
  const Outcome json = RunWinnow({"selection", "list", "--json"});
  EXPECT_EQ(text.code, 0);
  EXPECT_EQ(json.code, 0);
  const auto list = nlohmann::ordered_json::parse(json.output);
  ASSERT_EQ(list.size(), SelectionPresets().size());
  for (size_t i = 0; i < list.size(); ++i) {
    const SelectionPreset& preset = SelectionPresets()[i];
    EXPECT_THAT(text.output, HasSubstr(preset.spec.preset + "\n    "));
    EXPECT_EQ(list[i]["preset"], preset.spec.preset);
    EXPECT_EQ(list[i]["description"], std::string(preset.description));
    EXPECT_EQ(list[i]["not_built"].is_null(), preset.not_built.empty());
    EXPECT_EQ(*ParseSpec(list[i]["text"].get<std::string>()), preset.spec);
    const auto changes = SpecChangesFromJson(list[i]["specification"]);
    ASSERT_TRUE(changes.ok()) << changes.status();
    EXPECT_EQ(*ApplyChanges(*changes, SelectionSpec()), preset.spec);
  }
}

TEST(CommandLine, SelectionExplainShowsEveryField) {
  const Outcome outcome = RunWinnow({"selection", "explain", "winnow,predictor=temporal,window=16"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output, StartsWith("winnow,predictor=temporal,window=16\n\n"));
  for (const SelectionField& field : SelectionFields()) {
    EXPECT_THAT(outcome.output, HasSubstr("\n" + std::string(field.name) + " = "));
  }
  EXPECT_THAT(outcome.output, HasSubstr("window = 16    (2..32; a request may change it)\n"));
  EXPECT_THAT(outcome.output, HasSubstr("sinks = 4    (0..4096; fixed when the server starts)\n"));
  EXPECT_THAT(outcome.output, HasSubstr("    temporal: a blend of the queries of the last positions\n"));
  EXPECT_EQ(RunWinnow({"selection"}).code, 2);
  const auto json = nlohmann::json::parse(RunWinnow({"selection", "explain", "winnow,window=16", "--json"}).output);
  EXPECT_EQ(json["specification"], "winnow,window=16");
  ASSERT_EQ(json["fields"].size(), SelectionFields().size());
  for (const auto& field : json["fields"]) {
    if (field["field"] == "window") {
      EXPECT_EQ(field["value"], 16);
    }
  }
}

TEST(CommandLine, ProgramsReadWhatManifestsAndKeysHold) {
  const TempDir folder;
  const std::string wrong = folder.Write("wrong.yaml", "model: {path: x}\nnonsense: 1\n");
  const Outcome checked = RunWinnow({"config", "check", "--json", "deploy/cpu.yaml", wrong});
  EXPECT_EQ(checked.code, 1);
  const auto files = nlohmann::json::parse(checked.output);
  EXPECT_EQ(files[0]["file"], "deploy/cpu.yaml");
  EXPECT_EQ(files[0]["ok"], true);
  EXPECT_EQ(files[1]["ok"], false);
  EXPECT_THAT(std::string(files[1]["errors"][0]), HasSubstr("wrong.yaml:2"));

  const std::string keys = folder.path() + "/keys.yaml";
  ASSERT_EQ(RunWinnow({"keys", "add", keys, "--name=ann", "--max-concurrent=3"}).code, 0);
  const auto list = nlohmann::json::parse(RunWinnow({"keys", "list", keys, "--json"}).output);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0]["name"], "ann");
  EXPECT_EQ(list[0]["max-concurrent"], "3");
}

TEST(CommandLine, AClientWithoutAServerSaysSo) {
  const auto nobody = ReservedAddress::Reserve("127.0.0.1:0");
  ASSERT_TRUE(nobody.ok()) << nobody.status();
  const std::string server = "--server=" + nobody->address();
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"generate", server, "hello"}, {"demo", "--once", server}, {"status", server}, {"timeline", server}}) {
    SCOPED_TRACE(command.front());
    const Outcome outcome = RunWinnow(command);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.errors, AllOf(HasSubstr(nobody->address()), HasSubstr("start one with `winnow up --model DIR`"),
                                      HasSubstr("--server=HOST[:PORT]")));
  }
  for (const char* protocol : {"--protocol=http", "--protocol=grpc"}) {
    const Outcome outcome = RunWinnow({"bench", "serve", server, protocol, "--requests=1"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.errors, AllOf(HasSubstr("no request was answered at " + nobody->address()),
                                      HasSubstr("start one with `winnow up")));
  }
}

TEST(CommandLine, TheServerMayStandInTheEnvironmentAndTheCommandLineWins) {
  const auto nobody = ReservedAddress::Reserve("127.0.0.1:0"), other = ReservedAddress::Reserve("127.0.0.1:0");
  ASSERT_TRUE(nobody.ok() && other.ok());
  const WinnowProcess::Setting setting{.input = "", .environment = {"WINNOW_SERVER=" + nobody->address()}};
  for (const char* command : {"status", "timeline", "demo"}) {
    WinnowProcess process({command}, setting);
    EXPECT_EQ(process.Wait(), 1);
    EXPECT_THAT(process.errors(), HasSubstr(nobody->address())) << command;
  }
  WinnowProcess process({"generate", "--server=" + other->address(), "hello"}, setting);
  EXPECT_EQ(process.Wait(), 1);
  EXPECT_THAT(process.errors(), HasSubstr(other->address()));
}

TEST(CommandLine, AServerWithoutAPortHasTheOneOfWhatTheCommandSpeaks) {
  for (const auto& [command, port] : {std::pair{"status", "9100"}, std::pair{"timeline", "8001"}}) {
    EXPECT_THAT(RunWinnow({command, "--server=winnow.invalid"}).errors,
                HasSubstr(std::string("winnow.invalid:") + port));
  }
}

TEST(CommandLine, ARankSaysWhyTheRouterDoesNotAnswer) {
  const auto nobody = ReservedAddress::Reserve("127.0.0.1:0");
  ASSERT_TRUE(nobody.ok()) << nobody.status();
  WinnowProcess rank({"cache-rank", "--memory=1MiB", "--router", nobody->address()});
  const std::string complaint = "not registered, trying on: the router at " + nobody->address();
  for (int i = 0; i < 3000 && rank.errors().find(complaint) == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  rank.Signal(SIGTERM);
  EXPECT_EQ(rank.Wait(), 0);
  EXPECT_THAT(rank.errors(), ContainsRegex(complaint + ": .*failed to connect"));
}

TEST(CommandLine, TheDoctorFindsThisMachineFit) {
  const Outcome outcome = RunWinnow({"doctor"});
  EXPECT_EQ(outcome.code, 0);
  const auto json = nlohmann::json::parse(RunWinnow({"doctor", "--json"}).output);
  ASSERT_GT(json.size(), 6u);
  EXPECT_EQ(json[0]["subject"], "cores");
  for (const auto& finding : json) EXPECT_THAT(std::string(finding["verdict"]), testing::AnyOf("ok", "warn"));
  for (const char* subject : {"cores", "memory", "kernels", "/dev/shm", "ucx", "open files", "gpu"}) {
    EXPECT_THAT(outcome.output, HasSubstr(subject));
  }
}

}  // namespace
}  // namespace winnow
