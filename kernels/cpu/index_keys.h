#pragma once
#include "kernels/params/keys.h"

namespace winnow {

// The same for every instruction set.
void IndexKeys(const IndexKeysParams& params);

}  // namespace winnow
