#pragma once
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "common/grammar/automaton.h"
#include "common/grammar/grammar_states.h"
#include "common/grammar/grammar_text.h"
#include "router/openai/request/generation_request.h"

namespace winnow {

// The grammar of a request's answers; empty: they may be anything.
inline std::string GrammarOf(const absl::StatusOr<GenerationRequest>& request) {
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? request->fields.sampling.constraint().grammar() : "";
}

inline bool Matches(const std::string& grammar, std::string_view text) {
  const absl::StatusOr<Grammar> parsed = ParseGrammarText(grammar);
  if (!parsed.ok()) return false;
  const Automaton automaton = *Automaton::Compile(*parsed);
  GrammarStates states(automaton);
  GrammarStates::StateId state = states.Start();
  for (const char c : text) state = states.Next(state, static_cast<uint8_t>(c));
  return states.accepts(state);
}

}  // namespace winnow
