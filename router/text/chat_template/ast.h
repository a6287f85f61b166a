#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "router/text/chat_template/value.h"

namespace winnow::chat_template {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Body = std::vector<std::unique_ptr<Statement>>;

enum class Operator { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expression {
  enum class Kind {
    kConstant,     // constant
    kName,         // name
    kList,         // operands
    kTuple,        // operands
    kDict,         // operands: key, value, key, value ...
    kNot,          // operands[0]
    kNegative,     // operands[0]
    kPositive,     // operands[0]
    kBinary,       // operands[0] operators[0] operands[1]
    kCompare,      // operands[0] operators[0] operands[1] operators[1] operands[2] ...
    kAnd,          // operands[0], operands[1]
    kOr,           // operands[0], operands[1]
    kConcat,       // operands
    kConditional,  // operands: value, condition, other value (may be null)
    kAttribute,    // operands[0].name
    kSubscript,    // operands[0][operands[1]]
    kSlice,        // operands[0][operands[1]:operands[2]:operands[3]], the last three may be null
    kCall,         // operands[0](rest, named)
    kFilter,       // operands[0] | name(rest, named)
    kTest,         // operands[0] is name(rest, named)
  };

  Kind kind;
  int line = 0;
  int depth = 1;  // of the tree below; bounded by the parser
  std::string name;
  Value constant;
  std::vector<ExpressionPtr> operands;
  std::vector<Operator> operators;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // the default may be null
  Body body;
};

// What `set` or `for` assigns to: one name, several names, or ns.attribute.
struct Target {
  std::vector<std::string> names;
  bool unpack = false;    // several names, or one with a comma
  std::string attribute;  // not empty: names[0] is a namespace
};

struct Statement {
  enum class Kind {
    kText,      // text
    kOutput,    // expression
    kIf,        // branches
    kFor,       // target in expression if condition: body, else otherwise
    kSet,       // target = expression
    kSetBlock,  // target = body through filters
    kMacro,     // macro
    kFilter,    // body through filters
    kWith,      // assignments for body
    kBlock,     // body as it is (generation)
    kBreak,
    kContinue,
  };

  struct Branch {
    ExpressionPtr condition;  // null: else
    Body body;
  };

  Kind kind;
  int line = 0;
  std::string text;
  ExpressionPtr expression;
  ExpressionPtr condition;
  Target target;
  std::vector<Branch> branches;
  Body body;
  Body otherwise;
  // A chain of filters whose innermost input is null: the rendered body.
  ExpressionPtr filters;
  std::vector<std::pair<std::string, ExpressionPtr>> assignments;
  Macro macro;
};

}  // namespace winnow::chat_template
