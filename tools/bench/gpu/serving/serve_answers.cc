#include "tools/bench/gpu/serving/serve_answers.h"

#include <algorithm>
#include <filesystem>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"

ABSL_DECLARE_FLAG(std::string, demo_model);
ABSL_DECLARE_FLAG(std::string, demo_golden);
ABSL_DECLARE_FLAG(int, device);

namespace winnow {
namespace {

using e2e::Cluster;
using e2e::Completion;
using e2e::GoldenCase;
using e2e::Json;
using e2e::TokenIds;

// Of a logit, as in engine_section.cc.
constexpr double kLogitTolerance = 0.16;
constexpr double kDecided = 2 * kLogitTolerance;

std::string ProgramFolder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

}  // namespace

std::string FindWinnow() {
  for (const char* relative : {"/winnow", "/../cmd/winnow"}) {
    const std::string path = ProgramFolder() + relative;
    if (std::filesystem::exists(path)) return std::filesystem::canonical(path);
  }
  return {};
}

absl::StatusOr<std::unique_ptr<Cluster>> StartServing(const std::string& device, std::vector<std::string> flags) {
  Cluster::Options options;
  options.model = absl::GetFlag(FLAGS_demo_model);
  options.flags = std::move(flags);
  options.flags.push_back("--device=" + device);
  options.flags.push_back("--max-context=8192");
  return Cluster::Start(options);
}

std::string GpuName() {
  return absl::StrCat("cuda:", absl::GetFlag(FLAGS_device));
}

std::vector<GoldenCase> ServedCases(size_t min_tokens, size_t max_tokens) {
  std::vector<GoldenCase> cases;
  for (GoldenCase& item : e2e::LoadGolden(absl::GetFlag(FLAGS_demo_golden))) {
    if (item.prompt.size() >= min_tokens && item.prompt.size() <= max_tokens) cases.push_back(std::move(item));
  }
  return cases;
}

int CountWrong(const TokenIds& ids, const TokenIds& wanted, const std::vector<double>& margins) {
  for (size_t step = 0; step < wanted.size() && step < margins.size(); ++step) {
    if (margins[step] < kDecided) return 0;
    if (step >= ids.size() || ids[step] != wanted[step]) return 1;
  }
  return 0;
}

std::vector<double> MarginsOf(const Completion& completion) {
  std::vector<double> margins;
  for (const Json& top : completion.choice.at("logprobs").at("top_logprobs")) {
    std::vector<double> values;
    for (const Json& value : top) values.push_back(value.get<double>());
    std::sort(values.begin(), values.end(), std::greater<>());
    margins.push_back(values.size() < 2 ? 0 : values[0] - values[1]);
  }
  return margins;
}

}  // namespace winnow
