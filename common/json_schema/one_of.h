#pragma once
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/json_schema/schema_document.h"

namespace winnow {

// A value is valid under `oneOf` when it is under exactly one of its schemas. A grammar cannot count, so that the
// schemas must be seen to have no value in common: by their types, by their values, or by a property that both require
// with different values. Else INVALID_ARGUMENT.
absl::Status CheckOneOf(const SchemaDocument& document, const std::vector<const SchemaJson*>& schemas,
                        std::string_view path);

}  // namespace winnow
