#pragma once
#include <cstddef>
#include <cstdint>

#include "router/generation/served_model.h"

namespace winnow {

// What a request may generate that does not say how much: at most the model's max_default_answer_tokens, what is left
// of the context, and of what the cache ranks can store of one sequence, as room for all of it is set aside when it
// begins. Of a prompt that they cannot store at all what is left of the context: let them say why not. `prompt_tokens`
// are fewer than the context.
uint32_t DefaultMaxTokens(size_t prompt_tokens, const SelectionSpec& selection, const ServedModel& model);

}  // namespace winnow
