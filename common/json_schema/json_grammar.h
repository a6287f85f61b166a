#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/json.h"
#include "common/grammar/grammar.h"

namespace winnow {

// The rules of JSON texts within a grammar, made when they are first asked for.
//
// Between the parts of a text there may be nothing, one space, or a line end with an indentation of up to 32; with
// `compact` nothing. White space without bound would be a place where a model can stay for ever.
class JsonGrammar {
 public:
  using ExprId = Grammar::ExprId;

  // `grammar` must outlive this.
  JsonGrammar(Grammar& grammar, bool compact) : grammar_(grammar), compact_(compact) {}

  Grammar& grammar() { return grammar_; }

  ExprId Space();
  ExprId Comma() { return grammar_.Sequence({grammar_.Bytes(","), Space()}); }
  // `{` members `}`, where the members are a text of their own that is not empty.
  ExprId Object(ExprId members) { return Enclosed("{", members, "}"); }
  ExprId Array(ExprId elements) { return Enclosed("[", elements, "]"); }
  ExprId EmptyObject() { return Enclosed("{", grammar_.Empty(), "}"); }
  ExprId EmptyArray() { return Enclosed("[", grammar_.Empty(), "]"); }
  // `key` is written with its quotes.
  ExprId Member(ExprId key, ExprId value);
  ExprId Key(std::string_view name);

  ExprId String();
  // Of so many characters.
  ExprId String(uint32_t min, std::optional<uint32_t> max);
  ExprId Integer();
  ExprId Number();
  ExprId Boolean() { return grammar_.Choice({grammar_.Bytes("true"), grammar_.Bytes("false")}); }
  ExprId Null() { return grammar_.Bytes("null"); }
  // Any value; any object.
  ExprId Value();
  ExprId AnyObject();
  ExprId AnyArray();
  // This value and no other, its strings and numbers as they are usually written.
  ExprId Constant(const nlohmann::ordered_json& value);

  // One character within a string, as it is usually written: escaped only where it must be.
  ExprId Character(const std::vector<CodePointRange>& ranges);
  // Keys, with quotes, other than these names. Their characters are written as above, so that no name has two
  // spellings.
  ExprId KeyOtherThan(const std::vector<std::string>& names);

 private:
  ExprId Enclosed(std::string_view open, ExprId inside, std::string_view close);
  ExprId StringCharacter();
  ExprId RuleOnce(std::optional<Grammar::RuleId>& rule, std::string_view name, ExprId (JsonGrammar::*body)());
  ExprId SpaceBody();
  ExprId StringBody();
  ExprId IntegerBody();
  ExprId NumberBody();
  ExprId ValueBody();
  ExprId AnyObjectBody();
  ExprId AnyArrayBody();

  Grammar& grammar_;
  const bool compact_;
  std::optional<Grammar::RuleId> space_, string_, integer_, number_, value_, object_, array_;
};

}  // namespace winnow
