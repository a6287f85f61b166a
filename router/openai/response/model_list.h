#pragma once
#include <cstdint>
#include <string>

#include "router/generation/served_model.h"

namespace winnow {

// Objects of GET /v1/models/{name} and GET /v1/models, where the model has an entry for each of its names; `root` is
// the first one.
std::string ModelJson(const ServedModel& model, const std::string& name, int64_t created_unix_s);
std::string ModelListJson(const ServedModel& model, int64_t created_unix_s);

}  // namespace winnow
