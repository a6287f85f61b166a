#pragma once
#include <cstdint>
#include <string>

#include "common/base/dtype.h"
#include "common/base/status.h"
#include "common/config/fields.h"

namespace winnow {

// Of the model, and of how it is held; shared by ranks and `winnow up`.
void DeclareCompute(Fields& fields, Dtype* compute);
void DeclareKvDtype(Fields& fields, Dtype* kv_dtype);
void DeclareMaxContext(Fields& fields, uint32_t* max_context);

// INVALID_ARGUMENT when --max-context leaves no room for a prompt and a token.
absl::Status CheckMaxContext(uint32_t max_context);

// What --model must be: a folder with a config.json, or a synthetic model. INVALID_ARGUMENT names the option.
absl::Status CheckModelOption(const std::string& model);

}  // namespace winnow
