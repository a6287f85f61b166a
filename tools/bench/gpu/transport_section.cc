// The transports' suites (tests/common/transport, tests/device_transport), which are programs beside this one: the
// contract, faulty links and waits, and peers in processes of their own that are killed. On one GPU, where p2p alone
// can run, and on two.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/process.h"
#include "tools/bench/gpu/sections.h"

ABSL_DECLARE_FLAG(int, device);

namespace winnow {
namespace {

using e2e::Process;

constexpr std::chrono::seconds kLimit(120);
constexpr double kDeathMs = 1000;  // until a dead peer's channel has failed and everything of it is freed
constexpr const char* kPeer = "device_transport_test_peer";
// Most of a test's time is that of making communicators: tests run side by side.
struct Suite {
  const char* program;
  int shards;
};
constexpr Suite kSuites[] = {{"device_transport_test", 6}, {"device_transport_process_test", 3}};

// In a bundle beside this program, in a build tree in the tests' folder; empty where it is in neither.
std::string FindProgram(const std::string& name) {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* relative : {"", "../tests/device_transport"}) {
    const std::filesystem::path path = folder / relative / name;
    if (std::filesystem::exists(path)) return std::filesystem::canonical(path);
  }
  return {};
}

// What CUDA_VISIBLE_DEVICES must say for this GPU to be the only one.
std::string AloneVisible(int ordinal) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr || *visible == '\0') return std::to_string(ordinal);
  const std::vector<std::string> all = absl::StrSplit(visible, ',');
  return all[std::min<size_t>(ordinal, all.size() - 1)];
}

struct Outcome {
  int passed = 0;
  std::vector<std::string> failed;  // tests, or what became of a program
  int gpus = 0;                     // that the program found; 0: the tests' GPUs of host memory
  double death_ms = 0;              // slowest
};

void TakeLine(const std::string& line, Outcome& outcome) {
  char name[256] = "";
  double seen_ms = 0, freed_ms = 0;
  if (line.starts_with("[       OK ]")) {
    ++outcome.passed;
  } else if (std::sscanf(line.c_str(), "[  FAILED  ] %255s (", name) == 1 && line.find(" ms)") != std::string::npos) {
    outcome.failed.emplace_back(name);
  } else if (std::sscanf(line.c_str(), "[ GPUs     ] %d", &outcome.gpus) == 1) {
    return;
  } else if (std::sscanf(line.c_str(), "[ death    ] seen after %lf ms, freed after %lf ms", &seen_ms, &freed_ms) ==
             2) {
    outcome.death_ms = std::max(outcome.death_ms, freed_ms);
    std::printf("%s\n", line.c_str());
  } else if (!line.starts_with("[") && !line.starts_with("Running main") && !line.starts_with("Note:")) {
    std::printf("    %s\n", line.c_str());  // what a failure is about
  }
}

Outcome RunSuite(const std::string& program, int shards, Process::Environment environment) {
  environment.emplace_back("TRANSPORT_TEST_PEER", FindProgram(kPeer));
  environment.emplace_back("GTEST_TOTAL_SHARDS", std::to_string(shards));
  std::vector<std::unique_ptr<Process>> processes;
  for (int shard = 0; shard < shards; ++shard) {
    Process::Environment own = environment;
    own.emplace_back("GTEST_SHARD_INDEX", std::to_string(shard));
    processes.push_back(std::make_unique<Process>(std::vector<std::string>{program}, own));
  }
  const auto end = e2e::Clock::now() + kLimit;
  const auto left = [&] {
    return std::max(std::chrono::duration_cast<std::chrono::milliseconds>(end - e2e::Clock::now()),
                    std::chrono::milliseconds(0));
  };
  Outcome outcome;
  for (const auto& process : processes) {
    std::string last;
    while (const std::optional<std::string> line = process->ReadLine(left())) {
      TakeLine(*line, outcome);
      last = *line;
    }
    const std::optional<int> code = process->Wait(std::max(left(), std::chrono::milliseconds(2000)));
    if (code != 0 && !(code == 1 && !outcome.failed.empty())) {
      outcome.failed.push_back(absl::StrCat("exit code ", code.value_or(-1), ", last line: ", last));
    }
  }
  return outcome;
}

void CheckOn(GpuContext& gpu, int gpus) {
  Process::Environment environment;
  if (gpus == 1) environment.emplace_back("CUDA_VISIBLE_DEVICES", AloneVisible(absl::GetFlag(FLAGS_device)));
  for (const Suite& suite : kSuites) {
    const std::string name = absl::StrCat("transport, ", gpus, gpus == 1 ? " GPU: " : " GPUs: ", suite.program);
    const std::string program = FindProgram(suite.program);
    if (program.empty() || FindProgram(kPeer).empty()) {
      gpu.report.Note(name, "not checked: the program is not there");
      continue;
    }
    const auto start = e2e::Clock::now();
    const Outcome outcome = RunSuite(program, suite.shards, environment);
    const std::chrono::duration<double> seconds = e2e::Clock::now() - start;
    for (const std::string& failed : outcome.failed) gpu.report.Fail(name, failed);
    if (outcome.gpus < gpus) gpu.report.Fail(name, absl::StrCat("ran on ", outcome.gpus, " GPUs"));
    gpu.report.Check(absl::StrCat(name, ": failed, beside ", outcome.passed, " passed"),
                     outcome.passed > 0 ? static_cast<double>(outcome.failed.size()) : NAN, 0);
    gpu.report.Note(name, absl::StrCat(outcome.passed, " tests in ", seconds.count(), " s"));
    if (outcome.death_ms > 0) {
      gpu.report.Check(absl::StrCat(name, ": ms until a killed peer's channel is freed"), outcome.death_ms, kDeathMs);
    }
  }
}

void Check(GpuContext& gpu) {
  CheckOn(gpu, 1);
  if (gpu.table.device_count() > 1) {
    CheckOn(gpu, 2);
  } else {
    gpu.report.Note("transport, 2 GPUs", "not checked: there is one GPU alone");
  }
}

}  // namespace

GpuSection TransportSection() {
  return {"transport", Check, [](GpuContext&) {}};
}

}  // namespace winnow
