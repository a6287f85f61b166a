#pragma once
#include <string>

#include "router/generation/served_model.h"

namespace winnow {

// What "GET /selection" says: the selection of requests that ask for none, and the presets, each with what this server
// makes of it or why it refuses it.
std::string SelectionListJson(const ServedModel& model);

}  // namespace winnow
