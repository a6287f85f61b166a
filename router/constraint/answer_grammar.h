#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "common/base/json.h"
#include "common/base/status.h"
#include "common/grammar/grammar.h"
#include "router/chat_output/chat_formats.h"
#include "winnow/v1/sampling.pb.h"

namespace winnow {

// What stands before the part of an answer that is constrained.
struct AnswerReasoning {
  ReasoningFormat format = ReasoningFormat::kNone;
  bool begins_inside = false;  // the prompt ends in the reasoning
};

// A function that an answer may call.
struct CallableFunction {
  std::string name;
  nlohmann::ordered_json parameters;  // a JSON schema; null: any object
  bool closed = false;                // see SchemaOptions
  std::string path;                   // of the schema in the request, for errors
};

// The grammar of a whole answer, put together from what it must be; several alternatives may be added. What is wrong is
// an INVALID_ARGUMENT that names it.
class AnswerGrammar {
 public:
  static constexpr size_t kMaxSourceBytes = 256 << 10;  // of a schema, an expression, a grammar or all choices
  static constexpr size_t kMaxChoices = 10'000;
  static constexpr int kMaxSchemaDepth = 64;

  absl::Status Add(const v1::StructuredOutput& output);
  // One call of one of the functions, or with `several` more of them, as the format writes them.
  absl::Status AddToolCalls(ToolFormat format, const std::vector<CallableFunction>& functions, bool several);

  // The grammar as text, which is known to compile.
  absl::StatusOr<std::string> Finish(const AnswerReasoning& reasoning);

 private:
  absl::Status AddJson(const std::string& text, bool compact, bool closed);
  absl::Status AddGrammarText(const std::string& text);
  absl::StatusOr<Grammar::ExprId> Call(std::string_view arguments_key, const CallableFunction& function);
  Grammar::ExprId TextUntil(std::string_view end);

  Grammar grammar_;
  std::vector<Grammar::ExprId> alternatives_;
};

}  // namespace winnow
