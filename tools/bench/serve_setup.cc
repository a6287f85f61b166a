#include <algorithm>
#include <chrono>

#include "tests/e2e/golden.h"
#include "tools/bench/other_load.h"
#include "tools/bench/serve_sections.h"
#include "tools/machine/machine_read.h"

namespace winnow {
namespace {

constexpr size_t kWarmUpTokens = 8;
constexpr int kWindowTokens = 64;
constexpr double kQuiet = 0.06;  // of one core

}  // namespace

absl::StatusOr<std::unique_ptr<e2e::Cluster>> ServeBench::Start(const std::string& selection, uint32_t budget,
                                                                const std::vector<std::string>& further_flags) {
  e2e::Cluster::Options options;
  options.model = model_dir_;
  options.flags = {"--selection=" + selection, "--max-running=8", "--log-level=warning"};
  if (budget > 0) options.flags.push_back(absl::StrCat("--budget=", budget));
  options.flags.insert(options.flags.end(), further_flags.begin(), further_flags.end());
  WINNOW_ASSIGN_OR_RETURN(auto cluster, e2e::Cluster::Start(options));
  WINNOW_RETURN_IF_ERROR(RunStreams(cluster->http_address(), {e2e::DemoText(2048)}, 64).status());
  return cluster;
}

absl::StatusOr<ServeBench::Served> ServeBench::Serve(const e2e::Cluster& cluster, uint32_t context, int batch,
                                                     int max_tokens) {
  const size_t prompt_tokens = size_t{context} * batch;
  const size_t wanted = prompt_tokens > 8192 ? 1 : quick_ ? 2 : 5;
  std::vector<Run> runs;
  for (size_t clean = 0, tries = 0; clean < wanted && (tries < wanted || patience_s_ > 0); ++tries) {
    std::vector<e2e::TokenIds> prompts;
    for (int i = 0; i < batch; ++i) prompts.push_back(e2e::DemoText(context, 1000 * i + 77 * tries));
    WaitForQuiet(kQuiet, &patience_s_, cluster.AllPids());
    const OtherLoad load(cluster.AllPids());
    const auto start = std::chrono::steady_clock::now();
    WINNOW_ASSIGN_OR_RETURN(auto streams, RunStreams(cluster.http_address(), prompts, max_tokens));
    runs.push_back({std::move(streams), load.Share()});
    if (runs.back().others < kQuiet) {
      ++clean;
    } else {
      patience_s_ -= std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.others < b.others; });
  runs.resize(std::min(runs.size(), wanted));

  Served served;
  served.time_to_first_token_s = 1e30;
  std::vector<double> windows;
  for (const Run& run : runs) {
    const std::vector<double> cut = DecodeWindows(run.streams, kWarmUpTokens, std::max(1, max_tokens / kWindowTokens));
    windows.insert(windows.end(), cut.begin(), cut.end());
    served.others = std::max(served.others, run.others);
    const double share = 1.0 / static_cast<double>(run.streams.size() * runs.size());
    for (const TimedStream& stream : run.streams) {
      served.time_to_first_token_s = std::min(served.time_to_first_token_s, stream.time_to_first_token_s());
      served.hit_ratio += stream.hit_ratio * share;
      served.captured_mass += stream.captured_mass * share;
      served.streamed_bytes_per_token += stream.streamed_bytes / max_tokens * share;
    }
  }
  served.rate = Summarize(windows);
  if (served.rate.tokens_per_s == 0) return absl::InternalError("the streams did not overlap: more tokens are needed");
  return served;
}

void ServeBench::AwaitQuiet(const std::vector<pid_t>& ours) {
  WaitForQuiet(kQuiet, &patience_s_, ours);
}

double ServeBench::EngineDecodeTokensPerSecond(int batch) {
  WaitForQuiet(kQuiet, &patience_s_);
  return batch / engine_->DecodeStepSeconds(batch, quick_ ? 0.3 : 1);
}

double ServeBench::EnginePrefillTokensPerSecond(uint32_t context) {
  WaitForQuiet(kQuiet, &patience_s_);
  return context / engine_->PrefillSeconds(context, context > 8192 ? 1 : 3);
}

double ServeBench::TokensPerSecondToRead(int batch, double bytes_per_sequence) {
  const double bytes = engine_->weight_bytes() + batch * bytes_per_sequence;
  const size_t mib = static_cast<size_t>(bytes) >> 20;
  const double seconds = MachineReadSeconds(engine_->kernels(), engine_->executor(), static_cast<size_t>(bytes));
  const auto fastest = read_s_.try_emplace(mib, seconds).first;
  fastest->second = std::min(fastest->second, seconds);
  return batch / fastest->second;
}

double ServeBench::MemoryLimit(int batch, double rows) {
  return TokensPerSecondToRead(batch, rows * engine_->layout().token_bytes());
}

double ServeBench::MemoryLimitWithKeys(int batch, double context, double rows) {
  return TokensPerSecondToRead(batch, (rows + context / 2) * engine_->layout().token_bytes());
}

}  // namespace winnow
