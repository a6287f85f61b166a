#pragma once
#include <cstdint>
#include <vector>

#include "cache_rank/select/policy/mass.h"
#include "cache_rank/select/scorer/joint_scoring.h"
#include "cache_rank/select/scorer/loop_help.h"
#include "cache_rank/select/scorer/row_groups.h"
#include "cache_rank/select/scorer/scratch_buffer.h"
#include "cache_rank/select/scorer/token_scorer.h"
#include "common/base/kv_layout.h"

namespace winnow {

// One per worker thread.
struct SelectScratch {
  LoopHelp::Loop* help = nullptr;  // null: nobody helps this thread
  ScratchBuffer<float> queries, page_queries, scores, tail, importance, units;
  SoftmaxScratch softmax, page_softmax, bound_softmax, measured;
  ScratchBuffer<uint32_t> top_k;
  std::vector<uint32_t> chosen, merged, kept_groups;
  std::vector<std::vector<uint32_t>> lists;  // SelectUnion: of each query head
  std::vector<QueryHeadMask> marks;          // SelectUnion: by row
  RowGroups groups, candidates;
  std::vector<double> held, unread;
  PageMassScratch mass;
  ScoredMassScratch scored_mass;
  // Of keys and pseudo-keys that kernels read; they only grow. Measured are those that captured mass alone wants: a
  // rank that measures nothing would not read them.
  uint64_t scored_key_bytes = 0, measured_key_bytes = 0;
  uint64_t page_key_bytes = 0;    // of both, pseudo-keys of pages
  uint64_t shared_key_bytes = 0;  // that were not read again, because several sequences have them

  // SelectHeads.
  JointScratch joint;
  std::vector<KeyPass> passes;
  std::vector<Softmaxes> pass_softmaxes;
  std::vector<Scores> pass_scores;
  std::vector<std::vector<std::vector<uint32_t>>> task_lists;  // SelectUnions: of each query head, by task
};

}  // namespace winnow
