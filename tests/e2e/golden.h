#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tests/e2e/completion.h"

namespace winnow::e2e {

// One prompt with what a reference implementation in f32 makes of it.
struct GoldenCase {
  std::string name;
  TokenIds prompt;
  TokenIds greedy;
  std::vector<double> margin;      // by greedy step: best logit minus the second
  std::vector<double> top_logits;  // after the prompt, best first
  double logsumexp = 0;            // after the prompt
};

std::vector<GoldenCase> LoadGolden(const std::string& path);

// Cases of the demo model; loaded once.
const std::vector<GoldenCase>& DemoGolden();
// The shortest case of at least that many tokens, or the longest.
const GoldenCase& DemoCaseOfAtLeast(size_t tokens);
// `tokens` ids of the demo model's vocabulary that read as text: the prompts of the cases from `offset` on, over and
// over.
TokenIds DemoText(size_t tokens, size_t offset = 0);

}  // namespace winnow::e2e
