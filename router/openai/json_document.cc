#include "router/openai/json_document.h"

#include <algorithm>
#include <string>

#include "router/openai/api_error.h"

namespace winnow {
namespace {

// Deepest nesting of brackets outside strings. Meaningful for texts that are JSON; for others it only has to be safe.
int NestingDepth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

// "[json.exception.parse_error.101] parse error at ...: reason" without the brackets.
std::string Explain(const char* what) {
  const std::string_view text = what;
  const size_t end = text.find("] ");
  return std::string(end == text.npos ? text : text.substr(end + 2));
}

}  // namespace

absl::StatusOr<Json> ParseJsonObject(std::string_view text) {
  if (text.empty()) return InvalidField("", "The request body is empty; a JSON object is needed.", "invalid_json");
  // Before parsing: destroying and printing a document recurse.
  if (NestingDepth(text) > kMaxJsonDepth) {
    return InvalidField("", absl::StrCat("The JSON body nests deeper than ", kMaxJsonDepth, " levels."),
                        "invalid_json");
  }
  Json document;
  try {
    document = Json::parse(text);
  } catch (const Json::exception& error) {
    return InvalidField("", absl::StrCat("The request body is not valid JSON: ", Explain(error.what())),
                        "invalid_json");
  }
  if (!document.is_object()) {
    return InvalidField("", absl::StrCat("The request body must be a JSON object, not ", document.type_name(), "."),
                        "invalid_json");
  }
  return document;
}

}  // namespace winnow
