#include "tests/e2e/golden.h"

#include <fstream>

#include "common/base/check.h"
#include "tests/e2e/cluster.h"

namespace winnow::e2e {

std::vector<GoldenCase> LoadGolden(const std::string& path) {
  std::ifstream in(path);
  WINNOW_CHECK(in.is_open());
  std::vector<GoldenCase> cases;
  const Json golden = Json::parse(in);
  for (const Json& item : golden.at("cases")) {
    cases.push_back({item.at("name").get<std::string>(), item.at("prompt").get<TokenIds>(),
                     item.at("greedy").get<TokenIds>(), item.at("margin").get<std::vector<double>>(),
                     item.at("top_logits").get<std::vector<double>>(), item.at("logsumexp").get<double>()});
  }
  return cases;
}

const std::vector<GoldenCase>& DemoGolden() {
  static const std::vector<GoldenCase> cases = LoadGolden(SourcePath("tests/testdata/demo.golden.json"));
  return cases;
}

const GoldenCase& DemoCaseOfAtLeast(size_t tokens) {
  const GoldenCase* best = nullptr;
  for (const GoldenCase& candidate : DemoGolden()) {
    const size_t size = candidate.prompt.size();
    const size_t best_size = best == nullptr ? 0 : best->prompt.size();
    const bool better = best_size < tokens ? size > best_size : size >= tokens && size < best_size;
    if (best == nullptr || better) best = &candidate;
  }
  return *best;
}

TokenIds DemoText(size_t tokens, size_t offset) {
  TokenIds text;
  static const TokenIds all = [] {
    TokenIds ids;
    for (const GoldenCase& item : DemoGolden()) ids.insert(ids.end(), item.prompt.begin(), item.prompt.end());
    return ids;
  }();
  for (size_t i = 0; i < tokens; ++i) text.push_back(all[(offset + i) % all.size()]);
  return text;
}

}  // namespace winnow::e2e
