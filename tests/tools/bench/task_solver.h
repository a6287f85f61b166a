#pragma once
#include <optional>
#include <string>

namespace winnow::test {

// Answers a prompt of bench/tasks by reading it line by line, as a person would: a reference written without the
// generator. nullopt when it does not understand the question or finds no answer.
std::optional<std::string> SolveTask(const std::string& prompt);

}  // namespace winnow::test
