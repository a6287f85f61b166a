#include <algorithm>

#include "bench/machine_read.h"
#include "bench/serve_sections.h"
#include "tests/e2e/golden.h"

namespace winnow {
namespace {

constexpr size_t kWarmUpTokens = 8;
constexpr int kWindowTokens = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<e2e::Cluster>> ServeBench::Start(const std::string& selection, uint32_t budget) {
  e2e::Cluster::Options options;
  options.model = model_dir_;
  options.flags = {"--selection=" + selection, "--max-running=8", "--log-level=warning"};
  if (budget > 0) options.flags.push_back(absl::StrCat("--budget=", budget));
  WINNOW_ASSIGN_OR_RETURN(auto cluster, e2e::Cluster::Start(options));
  WINNOW_RETURN_IF_ERROR(RunStreams(cluster->http_address(), {e2e::DemoText(2048)}, 64).status());
  return cluster;
}

absl::StatusOr<ServeBench::Served> ServeBench::Serve(const e2e::Cluster& cluster, uint32_t context, int batch,
                                                     int max_tokens) {
  const size_t prompt_tokens = size_t{context} * batch;
  const int repeats = prompt_tokens > 8192 ? 1 : quick_ ? 2 : 5;
  std::vector<double> windows;
  Served served;
  served.time_to_first_token_s = 1e30;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    std::vector<e2e::TokenIds> prompts;
    for (int i = 0; i < batch; ++i) prompts.push_back(e2e::DemoText(context, 1000 * i + 77 * repeat));
    WINNOW_ASSIGN_OR_RETURN(const auto streams, RunStreams(cluster.http_address(), prompts, max_tokens));
    const std::vector<double> cut = DecodeWindows(streams, kWarmUpTokens, std::max(1, max_tokens / kWindowTokens));
    windows.insert(windows.end(), cut.begin(), cut.end());
    for (const TimedStream& stream : streams) {
      served.time_to_first_token_s = std::min(served.time_to_first_token_s, stream.time_to_first_token_s());
      served.hit_ratio += stream.hit_ratio / streams.size() / repeats;
      served.captured_mass += stream.captured_mass / streams.size() / repeats;
      served.streamed_bytes_per_token += stream.streamed_bytes / max_tokens / streams.size() / repeats;
    }
  }
  served.rate = Summarize(windows);
  if (served.rate.tokens_per_s == 0) return absl::InternalError("the streams did not overlap: more tokens are needed");
  return served;
}

double ServeBench::TokensPerSecondToRead(int batch, double bytes_per_sequence) {
  const double bytes = engine_->weight_bytes() + batch * bytes_per_sequence;
  return batch / MachineReadSeconds(engine_->kernels(), engine_->executor(), static_cast<size_t>(bytes));
}

double ServeBench::MemoryLimit(int batch, double rows) {
  return TokensPerSecondToRead(batch, rows * engine_->layout().token_bytes());
}

double ServeBench::MemoryLimitWithKeys(int batch, double context, double rows) {
  return TokensPerSecondToRead(batch, (rows + context / 2) * engine_->layout().token_bytes());
}

}  // namespace winnow
