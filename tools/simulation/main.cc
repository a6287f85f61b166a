#include <signal.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/logging.h"
#include "spdlog/sinks/base_sink.h"
#include "tools/simulation/scenario/planted.h"
#include "tools/simulation/scenario/seed_run.h"

namespace winnow::simulation {
namespace {

constexpr const char* kUsage = R"(Runs whole clusters in virtual time, each from a seed, and checks what must hold.

  simulate --seeds=FROM..TO [--jobs=N] [--keep-going] [--twice] [--starved]
  simulate --seeds=FROM..TO --planted=BUG
  simulate --seed=N [--trace] [--planted=BUG] [--starved]

  --seeds       Each of these seeds, in a process of its own. Prints the seeds that violate something, and totals.
  --seed        One seed. Exit status 1: a violation.
  --trace       Prints what happens: virtual seconds, process, event.
  --jobs        So many seeds at once; 2 by default.
  --keep-going  Goes on after a violation; without it 10 of them end the run.
  --twice       Runs each seed twice: a second run that differs from the first is a violation, too.
  --starved     Nothing fails, but nobody has enough CPU, under more requests than otherwise.
  --planted     Plants a bug. With --seeds the first violation ends the run, and the exit status is 1 where there was
                none: )";

// Longer than any seed takes on a loaded machine.
constexpr unsigned kSeedSeconds = 120;

struct Arguments {
  uint64_t from = 0, to = 0;  // [from, to)
  bool single = false, trace = false, keep_going = false, planted = false, twice = false;
  Scenario scenario = Scenario::kFaults;
  std::string bug;
  uint64_t jobs = 2;
};

class TraceSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const Runtime* const runtime = Runtime::current();
    if (runtime == nullptr) return;
    const std::string_view process =
        runtime->running() == nullptr ? "" : std::string_view(runtime->running()->process->name);
    runtime->Trace(process, {message.payload.data(), message.payload.size()});
  }
  void flush_() override {}
};

std::optional<Arguments> Parse(int argc, char** argv) {
  Arguments arguments;
  bool given = false;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--seeds=")) {
      const std::pair<std::string, std::string> range = absl::StrSplit(argument, absl::MaxSplits("..", 1));
      if (!absl::SimpleAtoi(range.first, &arguments.from) || !absl::SimpleAtoi(range.second, &arguments.to))
        return std::nullopt;
      given = true;
    } else if (absl::ConsumePrefix(&argument, "--seed=")) {
      if (!absl::SimpleAtoi(argument, &arguments.from)) return std::nullopt;
      arguments.to = arguments.from + 1;
      arguments.single = given = true;
    } else if (absl::ConsumePrefix(&argument, "--jobs=")) {
      if (!absl::SimpleAtoi(argument, &arguments.jobs) || arguments.jobs == 0) return std::nullopt;
    } else if (absl::ConsumePrefix(&argument, "--planted=")) {
      const std::vector<std::string> bugs = PlantedBugs();
      if (std::find(bugs.begin(), bugs.end(), argument) == bugs.end()) return std::nullopt;
      arguments.planted = true;
      arguments.bug = std::string(argument);
    } else if (argument == "--trace") {
      arguments.trace = true;
    } else if (argument == "--starved") {
      arguments.scenario = Scenario::kStarved;
    } else if (argument == "--twice") {
      arguments.twice = true;
    } else if (argument == "--keep-going") {
      arguments.keep_going = true;
    } else {
      return std::nullopt;
    }
  }
  if (!given || arguments.to <= arguments.from) return std::nullopt;
  return arguments;
}

void WriteAll(int file, const void* bytes, size_t size) {
  const auto* next = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t written = write(file, next, size);
    if (written <= 0) _exit(3);
    next += written;
    size -= static_cast<size_t>(written);
  }
}

// A process that runs `work`, and the pipe that its words come by.
struct Child {
  pid_t pid = 0;
  int pipe = -1;
  uint64_t seed = 0;
};

template <typename Work>
Child Fork(uint64_t seed, Work work) {
  int ends[2];
  if (pipe(ends) != 0) std::exit(3);
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid < 0) std::exit(3);
  if (pid == 0) {
    close(ends[0]);
    alarm(kSeedSeconds);
    work(ends[1]);
    _exit(0);
  }
  close(ends[1]);
  return {pid, ends[0], seed};
}

// All that the child has written, and how it ended.
std::string ReadAll(const Child& child, int* status) {
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(child.pipe, buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  close(child.pipe);
  waitpid(child.pid, status, 0);
  return text;
}

std::optional<Answers> FindAnswers() {
  const Child child = Fork(0, [](int pipe) {
    Answers answers;
    const SeedResult result = RunAlone(&answers);
    if (!result.violation.empty()) {
      std::fprintf(stderr, "%s\n", result.violation.c_str());
      _exit(1);
    }
    for (const auto& request : answers) {
      std::vector<std::string> samples;
      for (const auto& ids : request) samples.push_back(absl::StrJoin(ids, ","));
      const std::string line = absl::StrJoin(samples, ";") + "\n";
      WriteAll(pipe, line.data(), line.size());
    }
  });
  int status = 0;
  const std::string text = ReadAll(child, &status);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return std::nullopt;
  Answers answers;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    auto& request = answers.emplace_back();
    for (absl::string_view sample : absl::StrSplit(line, ';')) {
      auto& ids = request.emplace_back();
      for (absl::string_view id : absl::StrSplit(sample, ','))
        ids.push_back(static_cast<uint32_t>(std::stoul(std::string(id))));
    }
  }
  return answers;
}

class Totals {
 public:
  void Take(const Child& child, const Arguments& arguments, uint64_t* digest_before) {
    int status = 0;
    const std::string text = ReadAll(child, &status);
    SeedCounts counts;
    std::string violation;
    if (text.size() >= sizeof(counts)) {
      std::memcpy(&counts, text.data(), sizeof(counts));
      violation = text.substr(sizeof(counts));
    } else if (WIFSIGNALED(status)) {
      violation = WTERMSIG(status) == SIGALRM ? "the process hangs"
                                              : absl::StrCat("the process died of signal ", WTERMSIG(status));
    } else {
      violation = absl::StrCat("the process ended with status ", WEXITSTATUS(status));
    }
    ++seeds_;
    if (arguments.twice && *digest_before != 0 && *digest_before != counts.digest && violation.empty()) {
      violation = "a second run is not like the first";
    }
    *digest_before = counts.digest;
    if (!violation.empty()) {
      ++violations_;
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(child.seed), violation.c_str());
      std::fflush(stdout);
    }
    if (arguments.single) {
      std::printf("seed %llu: digest %016llx, %llu events, %llu virtual ms\n",
                  static_cast<unsigned long long>(child.seed), static_cast<unsigned long long>(counts.digest),
                  static_cast<unsigned long long>(counts.events), static_cast<unsigned long long>(counts.virtual_ms));
    }
    Add(counts);
  }
  uint64_t violations() const { return violations_; }
  void Print(double seconds) const {
    const auto print = [](const char* what, uint64_t count) {
      std::printf("%12llu %s\n", static_cast<unsigned long long>(count), what);
    };
    std::printf("%llu seeds in %.1f s, %.1f a second; %llu with a violation\n", static_cast<unsigned long long>(seeds_),
                seconds, static_cast<double>(seeds_) / seconds, static_cast<unsigned long long>(violations_));
    print("virtual seconds", sum_.virtual_ms / 1000);
    print("events", sum_.events);
    print("samples answered or cancelled", sum_.samples);
    print("of these cancelled by their clients", sum_.cancelled);
    print("tokens", sum_.tokens);
    print("lost with a router, as streams are that cannot be resumed", sum_.lost_with_router);
    print("failovers by attaching", sum_.routers.reattaches);
    print("failovers by computing again", sum_.routers.recomputes);
    for (size_t i = 0; i < kLossNames.size(); ++i) {
      print(absl::StrCat("attempts lost: ", kLossNames[i]).c_str(), sum_.routers.lost_attempts[i]);
    }
    print("replicas promoted", sum_.routers.promotions);
    print("answers resumed", sum_.routers.resumed);
    print("answers resumed by computing again", sum_.routers.resumed_recompute);
    print("hand-overs", sum_.routers.hand_overs);
    print("leases that ran out", sum_.routers.expired_leases);
    print("frames of stale epochs refused", sum_.stale_epochs);
    print("answers marked not identical", sum_.not_identical);
    for (size_t i = 0; i < kFaultNames.size(); ++i) print(std::string(kFaultNames[i]).c_str(), sum_.faults[i]);
  }

 private:
  void Add(const SeedCounts& counts) {
    sum_.virtual_ms += counts.virtual_ms;
    sum_.events += counts.events;
    sum_.samples += counts.samples;
    sum_.cancelled += counts.cancelled;
    sum_.tokens += counts.tokens;
    sum_.not_identical += counts.not_identical;
    sum_.lost_with_router += counts.lost_with_router;
    sum_.routers += counts.routers;
    sum_.stale_epochs += counts.stale_epochs;
    for (size_t i = 0; i < kFaultNames.size(); ++i) sum_.faults[i] += counts.faults[i];
  }

  SeedCounts sum_;
  uint64_t seeds_ = 0, violations_ = 0;
};

int Main(int argc, char** argv) {
  const std::optional<Arguments> arguments = Parse(argc, argv);
  if (!arguments.has_value()) {
    std::fprintf(stderr, "%s%s.\n", kUsage, absl::StrJoin(PlantedBugs(), ", ").c_str());
    return 2;
  }
  // Where memory lies decides about the order of what is kept by address: it is to be the same in every run.
  if ((personality(0xffffffff) & ADDR_NO_RANDOMIZE) == 0 &&
      personality(ADDR_NO_RANDOMIZE | personality(0xffffffff)) >= 0) {
    execv("/proc/self/exe", argv);
  }
  auto sink = std::make_shared<TraceSink>();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("trace", sink));
  spdlog::set_level(arguments->trace ? spdlog::level::info : spdlog::level::off);

  const std::optional<Answers> answers = FindAnswers();
  if (!answers.has_value()) {
    std::fprintf(stderr, "An undisturbed cluster does not answer as it should.\n");
    return 1;
  }
  if (arguments->planted) Plant(arguments->bug);  // the answers are those of a cluster without it
  const auto start = std::chrono::steady_clock::now();
  Totals totals;
  std::map<uint64_t, Child> children;  // by seed, and run of it: results come in their order
  uint64_t next = arguments->from, digest = 0;
  const uint64_t runs = arguments->twice ? 2 : 1;
  for (uint64_t run = 0; next < arguments->to || !children.empty();) {
    while (next < arguments->to && children.size() < arguments->jobs) {
      const uint64_t seed = next;
      const uint64_t number = seed * runs + run;
      if (++run == runs) {
        ++next;
        run = 0;
      }
      children[number] = Fork(seed, [&](int pipe) {
        SeedResult result = RunSeed(seed, arguments->scenario, *answers, arguments->trace);
        WriteAll(pipe, &result.counts, sizeof(result.counts));
        WriteAll(pipe, result.violation.data(), result.violation.size());
        _exit(0);
      });
    }
    if (children.begin()->first % runs == 0) digest = 0;
    totals.Take(children.begin()->second, *arguments, &digest);
    children.erase(children.begin());
    const uint64_t most = arguments->planted ? 1 : 10;
    if (totals.violations() >= most && !arguments->keep_going) next = arguments->to;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (!arguments->single) totals.Print(seconds.count());
  const bool should_fail = arguments->planted && !arguments->single;
  return (totals.violations() > 0) == should_fail ? 0 : 1;
}

}  // namespace
}  // namespace winnow::simulation

int main(int argc, char** argv) {
  return winnow::simulation::Main(argc, argv);
}
