#pragma once
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "router/openai/json/json_document.h"

namespace winnow {

enum class Endpoint { kCompletions, kChatCompletions, kResponses, kTokenize, kDetokenize };

std::string_view EndpointPath(Endpoint endpoint);

// What a field of a request's body does here.
enum class FieldUse {
  kServed,    // read where it belongs
  kNoEffect,  // accepted and not looked at: no value of it could change an answer
  kRefused,   // it asks for something that this server does not do
};

// A field of OpenAI's API or of its public extensions, with what happens to it on some of the endpoints.
struct RequestField {
  std::string_view name;
  FieldUse use = FieldUse::kServed;
  std::vector<Endpoint> endpoints;
  std::vector<Json> off = {};     // of a refused field: values that ask for nothing and so are accepted; null always is
  std::string_view instead = {};  // of a refused field: what serves the purpose here; empty: nothing does
};

// Every field that is known, each at most once for an endpoint. docs/api.md lists the same; a test compares.
const std::vector<RequestField>& RequestFields();

// Nothing in a body is ignored in silence: a field that is refused and not off, one of another endpoint and one that
// nobody knows are errors that name the field, and the known name that it is probably a misspelling of.
absl::Status CheckFields(const Json& body, Endpoint endpoint);

// The same for an object inside a body, whose fields are all known: `path` ends with a dot and stands in front of them.
absl::Status CheckKeys(const Json& object, std::string_view path, const std::vector<std::string_view>& known);

}  // namespace winnow
