#pragma once
#include <optional>
#include <string>

#include "common/base/status.h"
#include "router/openai/json/json_document.h"
#include "winnow/v1/sampling.pb.h"

namespace winnow {

// What a request says its answers must be.
struct ConstraintFields {
  std::string field;  // that says so, for errors
  v1::StructuredOutput output;
};

// "response_format", "structured_outputs" and the fields "guided_json", "guided_regex", "guided_choice" and
// "guided_grammar", of which at most one may be given; nullopt: answers may be anything.
absl::StatusOr<std::optional<ConstraintFields>> ReadConstraintFields(const Json& body);

}  // namespace winnow
