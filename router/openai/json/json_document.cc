#include "router/openai/json/json_document.h"

#include <algorithm>
#include <string>

#include "router/openai/json/api_error.h"
#include "router/openai/json/ordered_json.h"

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

}  // namespace

absl::StatusOr<Json> ParseJsonObject(std::string_view text) {
  if (text.empty()) return InvalidField("", "The request body is empty; a JSON object is needed.", "invalid_json");
  // Before parsing: destroying and printing a document recurse.
  if (NestingDepth(text) > kMaxJsonDepth) {
    return InvalidField("", absl::StrCat("The JSON body nests deeper than ", kMaxJsonDepth, " levels."),
                        "invalid_json");
  }
  absl::StatusOr<Json> document = ParseOrderedJson(text);
  if (!document.ok()) {
    return InvalidField("", absl::StrCat("The request body is not valid JSON: ", document.status().message()),
                        "invalid_json");
  }
  if (!document->is_object()) {
    return InvalidField("", absl::StrCat("The request body must be a JSON object, not ", document->type_name(), "."),
                        "invalid_json");
  }
  // Every field that is known is looked for.
  if (document->size() > kMaxBodyFields) {
    return InvalidField("", absl::StrCat("The request body has more than ", kMaxBodyFields, " fields."));
  }
  return document;
}

}  // namespace winnow
