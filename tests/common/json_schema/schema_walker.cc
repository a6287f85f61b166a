// Walks through the texts of JSON schemas, token by token as an answer is drawn, for validate_walks.py. Each line of
// the input is {"schema": ..., "texts": [...]}; each line of the output {"error": ...} or {"walks": [...], "accepted":
// [...]}: texts that were drawn at random, and which of the given ones the schema's grammar has.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>

#include "common/base/json.h"
#include "common/grammar/grammar_matcher.h"
#include "common/grammar/grammar_text.h"
#include "common/json_schema/schema_grammar.h"
#include "common/tokenizer/tokenizer.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kWalks = 4;
constexpr int kPatience = 25;  // tokens until a walk looks for its end
constexpr int kMaxTokens = 2000;

absl::StatusOr<std::shared_ptr<TokenGrammar>> Compile(const Json& schema, std::shared_ptr<const TokenTrie> trie) {
  Grammar grammar;
  WINNOW_ASSIGN_OR_RETURN(const Grammar::ExprId body, AddJsonSchema(schema, {}, grammar));
  grammar.set_root(grammar.AddRule("root", body));
  WINNOW_ASSIGN_OR_RETURN(const std::string text, GrammarText(grammar));
  WINNOW_ASSIGN_OR_RETURN(const Grammar again, ParseGrammarText(text));
  WINNOW_ASSIGN_OR_RETURN(Automaton automaton, Automaton::Compile(again));
  return std::make_shared<TokenGrammar>(std::move(automaton), std::move(trie));
}

// Null when the text did not end in time.
absl::StatusOr<Json> Walk(const std::shared_ptr<TokenGrammar>& grammar, std::mt19937& random) {
  GrammarMatcher matcher(grammar);
  const TokenTrie& trie = grammar->trie();
  std::string text;
  for (int step = 0; step < kMaxTokens; ++step) {
    if (matcher.is_complete() || (matcher.accepts() && random() % 3 == 0)) return Json(text);
    WINNOW_ASSIGN_OR_RETURN(const TokenMask* const mask, matcher.Mask());
    std::vector<uint32_t> allowed, closing;
    for (uint32_t id = 0; id < trie.vocab_size(); ++id) {
      if (!mask->Has(id)) continue;
      allowed.push_back(id);
      if (trie.bytes(id).find_first_of("\"]}") != std::string_view::npos) closing.push_back(id);
    }
    if (allowed.empty()) return absl::InternalError("no token may follow " + text);
    const bool closes = step > kPatience && !closing.empty() && random() % 4 != 0;
    const std::vector<uint32_t>& choices = closes ? closing : allowed;
    const uint32_t chosen = choices[random() % choices.size()];
    text += trie.bytes(chosen);
    matcher.Advance(chosen);
  }
  return Json();
}

bool Accepts(TokenGrammar& grammar, const Tokenizer& tokenizer, const std::string& text) {
  const absl::StatusOr<std::vector<uint32_t>> ids = tokenizer.Encode(text, /*add_special_tokens=*/false);
  if (!ids.ok()) return false;
  TokenGrammar::StateId state = grammar.start();
  for (const uint32_t id : *ids) state = grammar.Next(state, id);
  return grammar.accepts(state);
}

Json Answer(const Json& question, const Tokenizer& tokenizer, const std::shared_ptr<const TokenTrie>& trie,
            std::mt19937& random) {
  const auto grammar = Compile(question.at("schema"), trie);
  if (!grammar.ok()) return {{"error", grammar.status().message()}};
  Json walks = Json::array(), accepted = Json::array();
  for (int i = 0; i < kWalks; ++i) {
    const absl::StatusOr<Json> walk = Walk(*grammar, random);
    if (!walk.ok()) return {{"error", walk.status().message()}};
    walks.push_back(*walk);
  }
  for (const Json& text : question.at("texts")) accepted.push_back(Accepts(**grammar, tokenizer, text));
  return {{"walks", walks}, {"accepted", accepted}};
}

int Run(const std::string& tokenizer_file) {
  const auto tokenizer = Tokenizer::Load(tokenizer_file);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 1;
  }
  const auto trie = std::make_shared<const TokenTrie>(TokenTrie::Of(**tokenizer, (*tokenizer)->VocabSize(), {}));
  std::mt19937 random(11);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout
        << Answer(Json::parse(line), **tokenizer, trie, random).dump(-1, ' ', false, Json::error_handler_t::replace)
        << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  return argc == 2 ? winnow::Run(argv[1]) : 2;
}
