#pragma once
#include <string>

#include "common/base/status.h"
#include "common/config/fields.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// A specification, and the options that override fields of it.
struct SelectionOptions {
  std::string specification = "auto";  // "preset[,field=value...]", or by the model
  uint32_t budget = 0;
  int64_t sinks = -1;
  int64_t recent = -1;
  float pool_factor = 0;
  std::string head_profile;

  void Declare(Fields& fields);
  // Checked as a whole, and that this version can do it. `model` decides where nothing else does.
  absl::StatusOr<SelectionSpec> Resolve(const std::string& model) const;
};

}  // namespace winnow
