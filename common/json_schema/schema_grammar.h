#pragma once

#include "common/base/json.h"
#include "common/base/status.h"
#include "common/grammar/grammar.h"

namespace winnow {

struct SchemaOptions {
  // No white space between the parts of a text.
  bool compact = false;
  // Where a schema of an object does not say whether there may be more properties there are none, as OpenAI's strict
  // mode has it; else there may be any, as JSON schema has it.
  bool closed = false;
};

// Adds the texts of the JSON values that are valid under a schema (draft 2020-12, and what older drafts have in common
// with it) to a grammar. Properties come in the order of the schema, others behind them. INVALID_ARGUMENT names the
// keyword that is wrong or not supported and where it stands: no keyword is passed over that could make a value
// invalid.
absl::StatusOr<Grammar::ExprId> AddJsonSchema(const nlohmann::ordered_json& schema, const SchemaOptions& options,
                                              Grammar& grammar);

}  // namespace winnow
