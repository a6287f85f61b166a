// Whole clusters beside this program: `winnow up --device=cuda` with the demo model, asked over HTTP, against the
// golden data, against a cluster on the CPU, and against itself in a batch.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/bench/gpu/sections.h"
#include "tools/bench/gpu/serving/serve_answers.h"
#include "tools/bench/gpu/serving/serve_checks.h"
#include "tools/bench/gpu/serving/serve_peers.h"

ABSL_DECLARE_FLAG(std::string, demo_model);
ABSL_DECLARE_FLAG(std::string, demo_golden);
ABSL_DECLARE_FLAG(int, device);
ABSL_FLAG(std::string, serve_model, "",
          "model to time in the section serve, for example synthetic:qwen3-14b; empty: demo");
ABSL_FLAG(std::vector<std::string>, serve_selections, (std::vector<std::string>{"dense", "async-token", "winnow"}),
          "that are timed in the section serve");
ABSL_FLAG(bool, serve_by_frames, true, "check and time what goes by frames in the section serve, too");
ABSL_FLAG(std::string, serve_devices, "",
          "--device of what is timed in the section serve, for example cuda:0,1; empty: --device of this program");
ABSL_FLAG(uint32_t, serve_prompt, 2000, "tokens of its prompts, at most 8000");

namespace winnow {
namespace {

using e2e::Cluster;
using e2e::Completion;
using e2e::GoldenCase;
using e2e::Json;
using e2e::TokenIds;

constexpr int kTokens = 32;
constexpr const char* kSelections[] = {"winnow", "async-token", "exact-token", "lserve,profile_use=none",
                                       "psa",    "quest"};
// Of the first so many, answers are compared up to rounding. The others select whole pages, or as many as a mass asks
// for: one more or less, which rounding may decide, moves logits by more than rounding does.
constexpr size_t kTokenSelections = 3;

Json RequestFor(const std::string& selection, const TokenIds& prompt) {
  Json request = e2e::GreedyRequest(prompt, kTokens);
  request["winnow"] = {{"selection", selection}};
  return request;
}

}  // namespace

void CheckServedDense(GpuContext& gpu, const std::string& name, const std::string& device) {
  const absl::StatusOr<std::unique_ptr<Cluster>> cluster = StartServing(device, {"--selection=dense"});
  if (!cluster.ok()) return gpu.report.Fail(name, std::string(cluster.status().message()));
  const std::vector<GoldenCase> cases = ServedCases(0, 8000);
  int wrong = 0, equal = 0;
  std::vector<TokenIds> alone;
  for (const GoldenCase& item : cases) {
    const Completion completion =
        e2e::Complete((*cluster)->http(), e2e::GreedyRequest(item.prompt, static_cast<int>(item.greedy.size())));
    if (!completion.ok()) return gpu.report.Fail(absl::StrCat(name, " ", item.name), completion.error);
    wrong += CountWrong(completion.ids, item.greedy, item.margin);
    equal += completion.ids == item.greedy;
    alone.push_back(completion.ids);
  }
  std::vector<std::future<Completion>> together;
  for (const GoldenCase& item : cases) {
    together.push_back(std::async(std::launch::async, [&] {
      return e2e::Complete((*cluster)->http(), e2e::GreedyRequest(item.prompt, static_cast<int>(item.greedy.size())));
    }));
  }
  int changed = 0;
  for (size_t i = 0; i < cases.size(); ++i) changed += together[i].get().ids != alone[i];
  gpu.report.Check(name + ": answers that leave the reference where it is decided", wrong, 0);
  gpu.report.Check(name + ": answers that change in a batch", changed, 0);
  gpu.report.Note(name, absl::StrCat(equal, " of ", cases.size(), " answers equal over all tokens"));
}

bool CanServeDemo(GpuContext& gpu) {
  const std::string winnow = FindWinnow();
  if (winnow.empty() || !std::filesystem::exists(absl::GetFlag(FLAGS_demo_model)) ||
      !std::filesystem::exists(absl::GetFlag(FLAGS_demo_golden))) {
    gpu.report.Note("serve", "not checked: winnow, --demo_model or --demo_golden is not there");
    return false;
  }
  setenv("WINNOW_BINARY", winnow.c_str(), 1);
  return true;
}

namespace {

struct Answer {
  TokenIds ids;
  std::vector<double> margins;
};

// [selection][case]; empty after a failure.
std::vector<std::vector<Answer>> AnswersOf(GpuContext& gpu, const Cluster& cluster,
                                           const std::vector<GoldenCase>& cases, bool with_margins) {
  std::vector<std::vector<Answer>> answers;
  for (const char* selection : kSelections) {
    answers.emplace_back();
    for (const GoldenCase& item : cases) {
      Json request = RequestFor(selection, item.prompt);
      if (with_margins) request["logprobs"] = 2;
      const Completion completion = e2e::Complete(cluster.http(), request);
      if (!completion.ok()) {
        gpu.report.Fail(absl::StrCat("serve ", selection, " ", item.name), completion.error);
        return {};
      }
      answers.back().push_back({completion.ids, with_margins ? MarginsOf(completion) : std::vector<double>()});
    }
  }
  return answers;
}

void CheckSelections(GpuContext& gpu) {
  const std::vector<GoldenCase> cases = ServedCases(1400, 6500);
  std::vector<std::vector<Answer>> expected;
  {
    const auto cpu = StartServing("cpu", {"--budget=256"});
    if (!cpu.ok()) return gpu.report.Fail("serve cpu", std::string(cpu.status().message()));
    expected = AnswersOf(gpu, **cpu, cases, /*with_margins=*/true);
  }
  const auto cluster = StartServing(GpuName(), {"--budget=256"});
  if (!cluster.ok()) return gpu.report.Fail("serve selections", std::string(cluster.status().message()));
  const std::vector<std::vector<Answer>> answers = AnswersOf(gpu, **cluster, cases, /*with_margins=*/false);
  if (expected.empty() || answers.empty()) return;
  for (size_t s = 0; s < answers.size(); ++s) {
    int wrong = 0, equal = 0;
    for (size_t c = 0; c < cases.size(); ++c) {
      wrong += CountWrong(answers[s][c].ids, expected[s][c].ids, expected[s][c].margins);
      equal += answers[s][c].ids == expected[s][c].ids;
    }
    if (s < kTokenSelections) {
      gpu.report.Check(absl::StrCat("serve ", kSelections[s], ": answers that leave the CPU's where it is decided"),
                       wrong, 0);
    }
    gpu.report.Note(absl::StrCat("serve ", kSelections[s]),
                    absl::StrCat(equal, " of ", cases.size(), " answers equal"));
  }
  // All of them at once: every answer must be what it was alone.
  std::vector<std::future<Completion>> together;
  for (const char* selection : kSelections) {
    for (const GoldenCase& item : cases) {
      together.push_back(std::async(std::launch::async, [&, selection] {
        return e2e::Complete((*cluster)->http(), RequestFor(selection, item.prompt));
      }));
    }
  }
  int changed = 0;
  for (size_t i = 0; i < together.size(); ++i) {
    changed += together[i].get().ids != answers[i / cases.size()][i % cases.size()].ids;
  }
  gpu.report.Check(absl::StrCat("serve: answers of ", together.size(), " that change in a batch"), changed, 0);
}

void Check(GpuContext& gpu) {
  if (!CanServeDemo(gpu)) return;
  if (absl::GetFlag(FLAGS_serve_by_frames)) CheckServedDense(gpu, "serve dense", GpuName());
  if (absl::GetFlag(FLAGS_serve_by_frames)) CheckSelections(gpu);
  CheckServedPeers(gpu);
}

// What clients see of `batch` requests that are sent together.
struct Times {
  double first_token_ms = 0;  // of the last to get one
  double token_us = 0;        // median over requests of the time between tokens, once the last has got its first
};

Times TimeBatch(const Cluster& cluster, const std::string& selection, const TokenIds& prompt, int batch, int tokens) {
  using Clock = std::chrono::steady_clock;
  struct Stamp {
    Clock::time_point at;
    size_t tokens;
  };
  const auto start = Clock::now();
  std::vector<std::future<std::vector<Stamp>>> streams;
  for (int i = 0; i < batch; ++i) {
    streams.push_back(std::async(std::launch::async, [&, i] {
      TokenIds own = prompt;
      own[0] = static_cast<uint32_t>(i);  // no two alike
      Json request = RequestFor(selection, own);
      request["max_tokens"] = tokens;
      std::vector<Stamp> stamps;
      e2e::StreamCompletion(cluster.http(), request, [&](size_t count) {
        stamps.push_back({Clock::now(), count});
        return true;
      });
      return stamps;
    }));
  }
  std::vector<std::vector<Stamp>> all;
  Clock::time_point all_decode = start;
  for (auto& stream : streams) {
    all.push_back(stream.get());
    if (!all.back().empty()) all_decode = std::max(all_decode, all.back().front().at);
  }
  std::vector<double> token_us;
  for (const std::vector<Stamp>& stamps : all) {
    const auto begin =
        std::find_if(stamps.begin(), stamps.end(), [&](const Stamp& stamp) { return stamp.at >= all_decode; });
    if (begin == stamps.end() || begin->tokens == stamps.back().tokens) continue;
    const std::chrono::duration<double, std::micro> us = stamps.back().at - begin->at;
    token_us.push_back(us.count() / static_cast<double>(stamps.back().tokens - begin->tokens));
  }
  std::sort(token_us.begin(), token_us.end());
  return {std::chrono::duration<double, std::milli>(all_decode - start).count(),
          token_us.empty() ? 0 : token_us[token_us.size() / 2]};
}

void Bench(GpuContext& gpu) {
  const std::string winnow = FindWinnow();
  const std::string model = absl::GetFlag(FLAGS_serve_model);
  if (winnow.empty() || (model.empty() && !std::filesystem::exists(absl::GetFlag(FLAGS_demo_model)))) return;
  setenv("WINNOW_BINARY", winnow.c_str(), 1);
  if (!model.empty()) absl::SetFlag(&FLAGS_demo_model, model);
  BenchPeers(gpu);
  if (!absl::GetFlag(FLAGS_serve_by_frames)) return;
  const std::string devices = absl::GetFlag(FLAGS_serve_devices);
  const auto cluster =
      StartServing(devices.empty() ? GpuName() : devices, {model.empty() ? "--budget=256" : "--budget=2048"});
  if (!cluster.ok()) return gpu.report.Fail("serve", std::string(cluster.status().message()));
  TokenIds prompt(absl::GetFlag(FLAGS_serve_prompt));
  for (uint32_t& id : prompt) id = static_cast<uint32_t>(gpu.random() % 4000);
  constexpr int kLong = 96;
  for (const std::string& selection : absl::GetFlag(FLAGS_serve_selections)) {
    for (const int batch : {1, 8}) {
      const Times times = TimeBatch(**cluster, selection, prompt, batch, kLong);
      gpu.report.Note(absl::StrCat("serve ", model.empty() ? "demo" : model, ", ", selection, ", ", batch, " x ",
                                   prompt.size(), " tokens"),
                      absl::StrFormat("%.1f ms to the last first token, %.0f us per token (KV through host memory)",
                                      times.first_token_ms, times.token_us));
    }
  }
}

}  // namespace

GpuSection ServeSection() {
  return {"serve", Check, Bench};
}

}  // namespace winnow
