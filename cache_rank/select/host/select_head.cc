#include "cache_rank/select/host/select_head.h"

#include "cache_rank/select/host/head_context.h"
#include "cache_rank/select/host/list_picker.h"
#include "cache_rank/select/host/measure_lists.h"
#include "cache_rank/select/host/shared_scores.h"

namespace winnow {
namespace {

// After the shared scores: the lists, and the captured mass.
CapturedMassFigure Answer(const HeadContext& head, const SharedScores& shared, std::span<std::vector<uint32_t>> lists) {
  CapturedMassFigure mass;
  if (head.measures_previous()) mass = MeasurePrevious(head, shared, lists);
  ListPicker picker(head, shared);
  for (size_t i = 0; i < lists.size(); ++i) picker.Pick(i, &lists[i]);
  if (head.measures_itself()) mass = MeasureItself(head, shared, picker.candidates(), lists);
  return mass;
}

}  // namespace

CapturedMassFigure SelectHead(const KernelTable& kernels, const SelectionModel& model, const HeadQuestion& question,
                              SelectScratch& scratch, std::span<std::vector<uint32_t>> lists) {
  const HeadContext head(kernels, model, question, scratch, lists.size(),
                         scratch.queries.Reserve(HeadContext::QueryFloats(model)),
                         scratch.page_queries.Reserve(HeadContext::PageQueryFloats(model)));
  head.PredictQueries();
  SharedScores shared;
  ScoreShared({&head, 1}, {&shared, 1});
  return Answer(head, shared, lists);
}

void SelectHeads(const KernelTable& kernels, const SelectionModel& model, std::span<HeadTask> tasks,
                 SelectScratch& scratch) {
  const size_t query_floats = HeadContext::QueryFloats(model), page_floats = HeadContext::PageQueryFloats(model);
  float* queries = scratch.queries.Reserve(tasks.size() * query_floats);
  float* page_queries = scratch.page_queries.Reserve(tasks.size() * page_floats);
  std::vector<HeadContext> heads;
  heads.reserve(tasks.size());
  std::vector<HeadTask*> asked;
  std::vector<SharedScores> shared;
  // Apart, because what one kind shares lies where the other kind works row by row.
  for (const bool every_key : {true, false}) {
    heads.clear();
    asked.clear();
    for (HeadTask& task : tasks) {
      const HeadContext& head =
          heads.emplace_back(kernels, model, *task.question, scratch, task.lists.size(),
                             queries + heads.size() * query_floats, page_queries + heads.size() * page_floats);
      if (head.scores_every_key == every_key) {
        asked.push_back(&task);
      } else {
        heads.pop_back();
      }
    }
    if (asked.empty()) continue;
    for (const HeadContext& head : heads) head.PredictQueries();
    shared.assign(heads.size(), {});
    ScoreShared(heads, shared);
    for (size_t i = 0; i < asked.size(); ++i) asked[i]->mass = Answer(heads[i], shared[i], asked[i]->lists);
  }
}

}  // namespace winnow
