#include "tools/bench/gpu/serving/serve_peers.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <optional>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/selection/mass_positions.h"
#include "common/selection/presets.h"
#include "tests/e2e/generation_calls.h"
#include "tools/bench/gpu/serving/serve_answers.h"

ABSL_DECLARE_FLAG(std::string, demo_model);
ABSL_DECLARE_FLAG(int, device);
ABSL_FLAG(std::vector<std::string>, serve_peers,
          (std::vector<std::string>{"answers", "samples", "preemption", "apart", "cache-ranks", "inference-ranks"}),
          "what the section serve checks of decode steps from GPU to GPU");
ABSL_FLAG(std::vector<std::string>, serve_peer_selections,
          (std::vector<std::string>{"depth", "winnow", "exact-token", "async-token"}), "of the part answers");
ABSL_FLAG(uint32_t, serve_peer_tokens, 0, "tokens of a prompt whose answer is timed from GPU to GPU; 0: none is");

namespace winnow {
namespace {

using e2e::Cluster;
using e2e::Completion;
using e2e::GoldenCase;
using e2e::Json;
using e2e::Metrics;
using e2e::TokenIds;
using Clock = std::chrono::steady_clock;

constexpr int kTokens = 96;
constexpr size_t kKilledAt = 20;  // tokens of an answer
constexpr double kMostFreeingMs = 1000;

double MsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Clusters of one inference rank on the device under test, with the cache rank's GPU beside it.
std::vector<std::string> PeerFlags(const std::string& selection) {
  return {"--budget=256", "--selection=" + selection,
          absl::StrCat("--cache-device=cuda:", 1 - absl::GetFlag(FLAGS_device))};
}

Json Greedy(const TokenIds& prompt) {
  return e2e::GreedyRequest(prompt, kTokens);
}

struct Expected {
  TokenIds ids;
  std::vector<double> margins;
  double mass = 0;
};

// By frames and a cache rank's CPU.
std::vector<Expected> ByFrames(GpuContext& gpu, const std::string& selection, const std::vector<GoldenCase>& cases) {
  const auto frames = StartServing(GpuName(), {"--budget=256", "--selection=" + selection});
  if (!frames.ok()) {
    gpu.report.Fail("serve p2p " + selection, std::string(frames.status().message()));
    return {};
  }
  std::vector<Expected> expected;
  for (const GoldenCase& item : cases) {
    Json request = Greedy(item.prompt);
    request["logprobs"] = 2;
    const Completion completion = e2e::Complete((*frames)->http(), request);
    if (!completion.ok()) {
      gpu.report.Fail("serve p2p " + selection, completion.error);
      return {};
    }
    expected.push_back({completion.ids, MarginsOf(completion), completion.Stat("captured_mass_mean")});
  }
  return expected;
}

void CheckStepsByPeer(GpuContext& gpu, const std::string& name, const Cluster& cluster, const std::string& rank) {
  const Metrics metrics = cluster.MetricsOf(rank);
  const double by_peer = metrics.Value("winnow_peer_steps_total");
  gpu.report.Check(name + ": peer links that failed", metrics.Value("winnow_peer_links_failed_total"), 0);
  gpu.report.Check(name + ": steps that went by frames", metrics.Value("winnow_decode_steps_total") - by_peer, 0);
  gpu.report.Check(name + ": no step from GPU to GPU", by_peer > 0 ? 0 : 1, 0);
}

void CheckAnswers(GpuContext& gpu, const std::string& selection, const std::vector<GoldenCase>& cases) {
  const std::string name = absl::StrCat("serve p2p ", selection);
  const std::vector<Expected> expected = ByFrames(gpu, selection, cases);
  if (expected.empty()) return;
  const auto cluster = StartServing(GpuName(), PeerFlags(selection));
  if (!cluster.ok()) return gpu.report.Fail(name, std::string(cluster.status().message()));
  std::vector<TokenIds> alone;
  int wrong = 0, equal = 0, changed = 0;
  double mass_error = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Completion completion = e2e::Complete((*cluster)->http(), Greedy(cases[i].prompt));
    alone.push_back(completion.ids);
    wrong += CountWrong(alone[i], expected[i].ids, expected[i].margins);
    equal += alone[i] == expected[i].ids;
    if (alone[i] != expected[i].ids) continue;  // of other tokens
    const double error = std::abs(completion.Stat("captured_mass_mean") - expected[i].mass);
    mass_error = error <= mass_error ? error : mass_error == mass_error ? error : mass_error;
  }
  std::vector<std::future<Completion>> together;
  for (const GoldenCase& item : cases) {
    together.push_back(
        std::async(std::launch::async, [&] { return e2e::Complete((*cluster)->http(), Greedy(item.prompt)); }));
  }
  for (size_t i = 0; i < cases.size(); ++i) changed += together[i].get().ids != alone[i];
  gpu.report.Check(name + ": answers that leave those by frames where it is decided", wrong, 0);
  gpu.report.Check(name + ": answers that change in a batch", changed, 0);
  // With 8-bit keys each side measures by its own roundings of them. Otherwise selections differ in rows whose scores
  // are as close as what rounding a query to bf16 changes (2^-9 of a sum of magnitudes, some 2^-5 of a score), whose
  // shares of a softmax then are, too; of all rows these are few.
  const SelectionSpec spec = FindPreset(selection).value_or(SelectionSpec());
  if (spec.key_copy == KeyCopy::kNone)
    gpu.report.Check(name + ": captured masses beside those by frames", mass_error, 1e-3);
  CheckStepsByPeer(gpu, name, **cluster, "inference-0");
  gpu.report.Note(name, absl::StrFormat("%d of %d answers equal, captured masses (%.3f) differ by %.1e at most", equal,
                                        static_cast<int>(cases.size()), expected[0].mass, mass_error));
}

// Samples are those of requests of their own; a fork of a running sequence goes on as its source does.
void CheckSamples(GpuContext& gpu, const Cluster& cluster, const TokenIds& prompt) {
  e2e::GenerationClient client(cluster);
  v1::GenerateRequest request = e2e::SamplesOf("", prompt, 4, kTokens);
  const e2e::Answer together = client.Generate(request)->Finish();
  request.set_n(1);
  int differing = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    request.mutable_sampling()->set_sample_index(i);
    const e2e::Answer alone = client.Generate(request)->Finish();
    const auto sample = together.outputs.find(i);
    differing += !alone.status.ok() || sample == together.outputs.end() || sample->second.ids != alone.ids();
  }
  gpu.report.Check("serve p2p samples: that are not those of requests of their own", differing, 0);

  request = e2e::SamplesOf("", prompt, 1, 4 * kTokens);
  const TokenIds undisturbed = client.Generate(request)->Finish().ids();
  request.set_request_id("source");
  const auto source = client.Generate(request);
  source->ReadUntil(kKilledAt);
  v1::ForkRequest fork;
  fork.set_source_request_id("source");
  fork.set_sample_index(0);
  const auto twin = client.Fork(fork);
  const e2e::Answer forked = twin->Finish();
  TokenIds of_twin(undisturbed.begin(), undisturbed.begin() + forked.accepted.forked_tokens());
  if (forked.outputs.contains(0)) of_twin.insert(of_twin.end(), forked.ids().begin(), forked.ids().end());
  gpu.report.Check("serve p2p fork: answers that change",
                   (source->Finish().ids() != undisturbed) + (of_twin != undisturbed), 0);
  const double forks = cluster.MetricsOf("inference-0").Value("winnow_rank_sequences_total", {{"outcome", "forked"}});
  gpu.report.Check("serve p2p samples: sequences that were not forked", 4 - forks, 0);
  CheckStepsByPeer(gpu, "serve p2p samples", cluster, "inference-0");
}

void CheckPreemption(GpuContext& gpu, const Cluster& cluster, const std::vector<GoldenCase>& cases) {
  std::vector<TokenIds> alone;
  std::vector<std::future<Completion>> together;
  const auto answer = [&](size_t i) {
    Json request = Greedy(cases[i % cases.size()].prompt);
    request["prompt"][0] = i;  // no two alike
    return e2e::Complete(cluster.http(), request);
  };
  constexpr size_t kRequests = 8;
  for (size_t i = 0; i < kRequests; ++i) alone.push_back(answer(i).ids);
  for (size_t i = 0; i < kRequests; ++i) together.push_back(std::async(std::launch::async, answer, i));
  int changed = 0;
  double preemptions = 0;
  for (size_t i = 0; i < kRequests; ++i) {
    const Completion completion = together[i].get();
    changed += completion.ids != alone[i] || completion.ids.empty();
    preemptions += completion.Stat("preempted_count");
  }
  gpu.report.Check("serve p2p preemption: answers that change", changed, 0);
  gpu.report.Check("serve p2p preemption: none was preempted", preemptions > 0 ? 0 : 1, 0);
  gpu.report.Note("serve p2p preemption", absl::StrFormat("%.0f preemptions of %d requests", preemptions, kRequests));
  CheckStepsByPeer(gpu, "serve p2p preemption", cluster, "inference-0");
}

void CheckSharedCluster(GpuContext& gpu, const std::vector<GoldenCase>& cases, bool samples, bool preemption) {
  std::vector<std::string> flags = PeerFlags("winnow");
  flags.insert(flags.end(), {"--max-running=4", "--age-bound=20ms", "--prefix-cache=false"});
  const auto cluster = StartServing(GpuName(), flags);
  if (!cluster.ok()) return gpu.report.Fail("serve p2p samples", std::string(cluster.status().message()));
  if (samples) CheckSamples(gpu, **cluster, cases[0].prompt);
  if (preemption) CheckPreemption(gpu, **cluster, cases);
}

// One rank computes prompts on the GPU that the cache rank selects on, the other decodes.
void CheckApart(GpuContext& gpu, const std::vector<GoldenCase>& cases, const std::vector<Expected>& expected) {
  const auto cluster = StartServing("cuda", {"--budget=256", "--selection=winnow", "--cache-device=cuda:0",
                                             "--prefill-ranks=1", "--decode-ranks=1", "--slot-memory=4GiB"});
  if (!cluster.ok()) return gpu.report.Fail("serve p2p apart", std::string(cluster.status().message()));
  int wrong = 0, equal = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const TokenIds ids = e2e::Complete((*cluster)->http(), Greedy(cases[i].prompt)).ids;
    wrong += CountWrong(ids, expected[i].ids, expected[i].margins);
    equal += ids == expected[i].ids;
  }
  gpu.report.Check("serve p2p apart: answers that leave those by frames where it is decided", wrong, 0);
  gpu.report.Check(
      "serve p2p apart: prompts that were not handed over",
      static_cast<double>(cases.size()) - (*cluster)->MetricsOf("router-0").Value("winnow_hand_overs_total"), 0);
  CheckStepsByPeer(gpu, "serve p2p apart", **cluster, "decode-0");
  gpu.report.Note("serve p2p apart", absl::StrCat(equal, " of ", cases.size(), " answers equal"));
}

void CheckLog(GpuContext& gpu, const std::string& name, Cluster& cluster, std::string_view wanted) {
  const std::string log = cluster.process().Log();
  if (!absl::StrContains(log, std::string(wanted)))
    gpu.report.Fail(name, absl::StrCat("not in the log: ", std::string(wanted)));
}

// An answer whose rank is killed on the way, and how long a count takes to be as wanted after that.
struct Killed {
  TokenIds ids;
  std::optional<double> freed_ms;
};

Killed AnswerWhileKilling(const Cluster& cluster, const TokenIds& prompt, const std::function<bool()>& kill_rank,
                          const std::function<bool()>& is_free) {
  Killed killed;
  bool tried = false;
  const Completion completion = e2e::StreamCompletion(cluster.http(), Greedy(prompt), [&](size_t tokens) {
    if (tokens < kKilledAt || std::exchange(tried, true) || !kill_rank()) return true;
    const auto start = Clock::now();
    while (!is_free() && MsSince(start) < 10 * kMostFreeingMs)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    killed.freed_ms = MsSince(start);
    return true;
  });
  killed.ids = completion.ids;
  return killed;
}

// A second cache rank, on a GPU of its own where there is one, whose rows share steps with those of the first, and what
// is left when one of them is killed.
void CheckCacheRanks(GpuContext& gpu, const std::vector<GoldenCase>& cases, const std::vector<Expected>& expected) {
  const std::string name = "serve p2p 2 cache ranks";
  std::vector<std::string> flags = PeerFlags("winnow");
  const std::string cache_device =
      gpu.table.device_count() > 2 ? "device=cuda:2" : flags.back().substr(std::string("--cache-").size());
  const auto cluster = StartServing(GpuName(), flags);
  if (!cluster.ok()) return gpu.report.Fail(name, std::string(cluster.status().message()));
  e2e::Process second({e2e::WinnowBinary(), "cache-rank", "--rank=cache-1", "--router=" + (*cluster)->grpc_address(),
                       "--" + cache_device, "--device-memory=4GiB", "--memory=4GiB", "--log-level=warning",
                       "--peer-model=" + absl::GetFlag(FLAGS_demo_model)},
                      {});
  const auto ranks = [&] {
    return (*cluster)->MetricsOf("router-0").Value("winnow_router_ranks", {{"kind", "cache"}});
  };
  if (!e2e::WaitUntil(std::chrono::seconds(20), [&] { return ranks() == 2; })) {
    return gpu.report.Fail(name, "the second one has not come: " + second.Log());
  }
  std::vector<std::future<Completion>> together;
  for (const GoldenCase& item : cases) {
    together.push_back(
        std::async(std::launch::async, [&] { return e2e::Complete((*cluster)->http(), Greedy(item.prompt)); }));
  }
  int wrong = 0, equal = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const TokenIds ids = together[i].get().ids;
    wrong += CountWrong(ids, expected[i].ids, expected[i].margins);
    equal += ids == expected[i].ids;
  }
  gpu.report.Check(name + ": answers that leave those by frames where it is decided", wrong, 0);
  CheckStepsByPeer(gpu, name, **cluster, "inference-0");
  const Metrics first = (*cluster)->MetricsOf("cache-0");
  const double first_plans = first.Value("winnow_peer_plans_total");
  const double first_batch_rows = first.Value("winnow_peer_batch_rows_total", {{"outcome", "granted"}});
  const double steps = (*cluster)->MetricsOf("inference-0").Value("winnow_peer_steps_total");
  const auto requests = static_cast<double>(cases.size());
  gpu.report.Check(name + ": one of them had nothing to do",
                   first_batch_rows > 0 && first_batch_rows < requests ? 0 : 1, 0);
  gpu.report.Check(name + ": steps of rows one by one", steps < requests * (kTokens - 1) ? 0 : 1, 0);
  gpu.report.Note(name, absl::StrFormat("%d of %d answers equal, %.0f steps, %.0f of them with rows of the first",
                                        equal, static_cast<int>(cases.size()), steps, first_plans));

  const Killed killed = AnswerWhileKilling(
      **cluster, cases[0].prompt,
      [&] {
        const bool first = (*cluster)->MetricsOf("cache-0").Value("winnow_sequences", {{"state", "active"}}) > 0;
        return kill(first ? (*cluster)->Pids("cache-rank")[0] : second.pid(), SIGKILL) == 0;
      },
      [&] { return (*cluster)->MetricsOf("inference-0").Value("winnow_peer_links_failed_total") > 0; });
  const std::string after = "serve p2p, cache rank killed";
  gpu.report.Check(after + ": ms until its peer's step has ended", killed.freed_ms.value_or(NAN), kMostFreeingMs);
  gpu.report.Check(after + ": an answer that leaves that by frames where it is decided",
                   CountWrong(killed.ids, expected[0].ids, expected[0].margins), 0);
  gpu.report.Note(after, absl::StrFormat("%.0f ms, %s", killed.freed_ms.value_or(NAN),
                                         killed.ids == expected[0].ids ? "the same answer" : "another answer"));
  CheckLog(gpu, after, **cluster, "from now on: the peer link has failed");
}

// The other inference rank shares the cache rank's GPU, and goes on by frames.
void CheckInferenceRanks(GpuContext& gpu, const std::vector<GoldenCase>& cases, const std::vector<Expected>& expected) {
  const std::string name = "serve p2p, inference rank killed";
  const auto cluster = StartServing("cuda", {"--budget=256", "--selection=winnow", "--cache-device=cuda:1",
                                             "--inference-ranks=2", "--slot-memory=4GiB"});
  if (!cluster.ok()) return gpu.report.Fail(name, std::string(cluster.status().message()));
  const std::vector<pid_t> pids = (*cluster)->Pids("inference-rank");
  Killed killed;
  for (int attempt = 0; attempt < 8 && !killed.freed_ms.has_value(); ++attempt) {
    killed = AnswerWhileKilling(
        **cluster, cases[0].prompt,
        [&] {
          if ((*cluster)->MetricsOf("inference-0").Value("winnow_peer_sequences") == 0) return false;
          return kill(pids[0], SIGKILL) == 0;
        },
        [&] { return (*cluster)->MetricsOf("cache-0").Value("winnow_peer_links") == 0; });
  }
  gpu.report.Check(name + ": ms until the cache rank's plan has ended", killed.freed_ms.value_or(NAN), kMostFreeingMs);
  gpu.report.Check(name + ": an answer that leaves that by frames where it is decided",
                   CountWrong(killed.ids, expected[0].ids, expected[0].margins), 0);
  gpu.report.Note(name, absl::StrFormat("%.0f ms, %s", killed.freed_ms.value_or(NAN),
                                        killed.ids == expected[0].ids ? "the same answer" : "another answer"));
  CheckLog(gpu, name, **cluster, "the peer link to inference-0 has ended");
}

}  // namespace

void CheckServedPeers(GpuContext& gpu) {
  if (gpu.table.device_count() < 2) return gpu.report.Note("serve p2p", "not checked: there is one GPU alone");
  const std::vector<std::string> parts = absl::GetFlag(FLAGS_serve_peers);
  const auto has = [&](std::string_view part) { return std::find(parts.begin(), parts.end(), part) != parts.end(); };
  const std::vector<GoldenCase> cases = ServedCases(1400, 6500);
  if (cases.empty()) return gpu.report.Note("serve p2p", "not checked: there is no golden data");
  if (has("answers")) {
    for (const std::string& selection : absl::GetFlag(FLAGS_serve_peer_selections)) CheckAnswers(gpu, selection, cases);
  }
  if (has("samples") || has("preemption")) CheckSharedCluster(gpu, cases, has("samples"), has("preemption"));
  if (!has("apart") && !has("cache-ranks") && !has("inference-ranks")) return;
  const std::vector<Expected> expected = ByFrames(gpu, "winnow", cases);
  if (expected.empty()) return;
  if (has("apart")) CheckApart(gpu, cases, expected);
  if (has("cache-ranks")) CheckCacheRanks(gpu, cases, expected);
  if (has("inference-ranks")) CheckInferenceRanks(gpu, cases, expected);
}

void BenchPeers(GpuContext& gpu) {
  const uint32_t tokens = absl::GetFlag(FLAGS_serve_peer_tokens);
  if (tokens == 0 || gpu.table.device_count() < 2) return;
  e2e::Cluster::Options options;
  options.model = absl::GetFlag(FLAGS_demo_model);
  options.flags = {"--device=" + GpuName(),
                   "--selection=winnow",
                   "--budget=2048",
                   "--max-running=8",
                   absl::StrCat("--max-context=", tokens + 512),
                   absl::StrCat("--cache-device=cuda:", 1 - absl::GetFlag(FLAGS_device))};
  const auto cluster = Cluster::Start(options);
  if (!cluster.ok()) return gpu.report.Fail("serve p2p", std::string(cluster.status().message()));
  TokenIds prompt(tokens);
  for (uint32_t& id : prompt) id = static_cast<uint32_t>(gpu.random() % 4000);
  constexpr int kAnswer = 400;
  std::vector<Clock::time_point> stamps(kAnswer + 1);
  e2e::StreamCompletion((*cluster)->http(), e2e::GreedyRequest(prompt, kAnswer), [&](size_t count) {
    if (count < stamps.size()) stamps[count] = Clock::now();
    return true;
  });
  // The step that brings token n + 1 decodes the position of token n.
  std::vector<double> measured_us, others_us;
  SelectionSpec spec;
  for (int n = 18; n < kAnswer; ++n) {  // the first ones are all measured
    if (stamps[n] == Clock::time_point() || stamps[n + 1] == Clock::time_point()) continue;
    const std::chrono::duration<double, std::micro> us = stamps[n + 1] - stamps[n];
    const uint32_t position = tokens + static_cast<uint32_t>(n) - 1;
    (MeasuresMass(spec, position, tokens - kMassInterval) ? measured_us : others_us).push_back(us.count());
  }
  const auto median = [](std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return values.empty() ? NAN : values[values.size() / 2];
  };
  gpu.report.Note(absl::StrCat("serve p2p winnow, 1 x ", tokens, " tokens"),
                  absl::StrFormat("%.0f us per token where captured mass is measured (%d), %.0f us where not (%d)",
                                  median(measured_us), static_cast<int>(measured_us.size()), median(others_us),
                                  static_cast<int>(others_us.size())));
}

}  // namespace winnow
