#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/cluster.h"
#include "tests/e2e/completion.h"
#include "tests/e2e/golden.h"

namespace winnow {

// What the section serve shares: clusters beside this program, and how their answers are compared.

// The command beside this program in a bundle, in its own folder in a build tree; empty: nowhere.
std::string FindWinnow();

// `winnow up` of the demo model, or of the one in --demo_model, with contexts of at most 8,192 tokens. `device` is that
// of inference ranks.
absl::StatusOr<std::unique_ptr<e2e::Cluster>> StartServing(const std::string& device, std::vector<std::string> flags);

// The device under test, as flags name it.
std::string GpuName();

// Cases with so many prompt tokens. A bundle need not have the golden data; then nothing is compared with it.
std::vector<e2e::GoldenCase> ServedCases(size_t min_tokens, size_t max_tokens);

// Steps until the first that is not decided, at which `ids` is another answer: 0 or 1, as the steps after it have
// another past. A step is decided where the best two of `wanted` are further apart than both can be wrong.
int CountWrong(const e2e::TokenIds& ids, const e2e::TokenIds& wanted, const std::vector<double>& margins);

// How far the best two tokens of each step are apart, of an answer with logprobs.
std::vector<double> MarginsOf(const e2e::Completion& completion);

}  // namespace winnow
