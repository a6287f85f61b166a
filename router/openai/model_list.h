#pragma once
#include <cstdint>
#include <string>

#include "router/generation/served_model.h"

namespace winnow {

// Objects of GET /v1/models/{id} and GET /v1/models.
std::string ModelJson(const ServedModel& model, int64_t created_unix_s);
std::string ModelListJson(const ServedModel& model, int64_t created_unix_s);

}  // namespace winnow
