#pragma once
#include <algorithm>

#include "router/generation/served_model.h"
#include "router/keys/caller.h"

namespace winnow {

// The model as this caller may use it.
inline ServedModel ModelFor(const Caller& caller, ServedModel model) {
  if (caller.account == nullptr) return model;
  const uint32_t limit = caller.account->key().limits.max_answer_tokens;
  if (limit > 0) model.max_default_answer_tokens = std::min(model.max_default_answer_tokens, limit);
  return model;
}

}  // namespace winnow
