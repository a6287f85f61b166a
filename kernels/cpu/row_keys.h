#pragma once
#include "kernels/params/keys.h"

// Keys of int8 that are scored in their rows: some blocks at a time are brought to tiles, which lie in the second-level
// cache until they are scored, so that memory is read once and all instruction sets score as they score tiles.

namespace winnow {

// `index_keys` of rows of int8, and `key_score` of int8 tiles.
void ScoreRowKeys(const KeyScoreParams& params, void (*index_keys)(const IndexKeysParams&),
                  void (*key_score)(const KeyScoreParams&));

}  // namespace winnow
