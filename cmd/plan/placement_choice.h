#pragma once
#include "cmd/up/up_options.h"

namespace winnow {

// Whether ranks that decode select in place on such a machine, unless they are told not to: it has GPUs for them, and
// not as many beside.
bool SelectsInPlace(const UpOptions& options, int gpus);

// What --selection=auto is on a machine with so many GPUs, where that depends on more than the model: rows that all lie
// where they are attended to had better be read than searched while they are few. Whether it has been changed.
bool ChooseInPlaceSelection(UpOptions& options, int gpus);

}  // namespace winnow
