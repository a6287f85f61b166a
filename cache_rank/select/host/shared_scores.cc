#include "cache_rank/select/host/shared_scores.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "cache_rank/select/scorer/joint_scoring.h"
#include "common/base/check.h"

namespace winnow {
namespace {

// Which scores a head wants: of rows with scores_every_key, otherwise of pages.
bool IsCuboid(const HeadContext& head) {
  return head.spec.scorer == Scorer::kPageCuboid;
}
bool NeedsMass(const HeadContext& head) {
  return head.spec.policy == Policy::kMass;
}
bool WantsRowSoftmax(const HeadContext& head) {
  return head.scores_every_key && (head.sums_softmaxes || NeedsMass(head) || head.question.measured != nullptr);
}
bool WantsRowScores(const HeadContext& head) {
  return head.scores_every_key && !head.sums_softmaxes;
}
bool WantsBounds(const HeadContext& head) {
  return !head.scores_every_key && ((head.measures_itself() && !head.question.measures_exactly) ||
                                    (NeedsMass(head) && head.spec.stop_rule == StopRule::kBound));
}
bool SelectsByPageScores(const HeadContext& head) {
  return !head.scores_every_key && (head.spec.scorer == Scorer::kTwoStage || !head.sums_softmaxes);
}
// Where groups leave some pages out, each list has others to score.
bool WantsPageScores(const HeadContext& head) {
  return SelectsByPageScores(head) && !head.page_groups.leaves_out();
}
bool WantsPageSoftmax(const HeadContext& head) {
  return !head.scores_every_key && !SelectsByPageScores(head) && (IsCuboid(head) || !WantsBounds(head));
}
bool WantsMeasuringBounds(const HeadContext& head) {
  return !head.scores_every_key && head.measures_previous() && !head.question.measures_exactly;
}

// With every key, in one pass for those that measure the position before too. The position's own row has no say in its
// selection, even where its mass is measured.
KeyPass MeasuringPass(const HeadContext& head) {
  return {head.AllKeys(), head.queries, head.measures_previous() ? 2 * head.group_size : head.group_size};
}
KeyPass RowPass(const HeadContext& head) {
  return {head.AllKeys(), head.queries, head.group_size};
}
KeyPass BoundsPass(const HeadContext& head) {
  return {head.Pages(head.question.index.bounds), head.page_queries, head.group_size};
}
KeyPass MeasuringBoundsPass(const HeadContext& head) {
  const size_t floats = static_cast<size_t>(2) * head.group_size * head.model.head_dim;
  return {head.Pages(head.question.index.bounds), head.page_queries + floats, head.group_size};
}
KeyPass PagePass(const HeadContext& head) {
  return {head.Pages(IsCuboid(head) ? head.question.index.cuboids : head.question.index.bounds), head.page_queries,
          head.group_size};
}

using WantsFn = bool (*)(const HeadContext&);
using PassFn = KeyPass (*)(const HeadContext&);

// One kind of pass for those heads that want it.
class JointPass {
 public:
  JointPass(std::span<const HeadContext> heads, std::span<SharedScores> scores, WantsFn wants, PassFn pass_of)
      : heads_(heads), scores_(scores), wants_(wants), first_(heads[0]), passes_(first_.scratch.passes) {
    passes_.clear();
    for (const HeadContext& head : heads) {
      if (wants(head)) passes_.push_back(pass_of(head));
    }
  }

  void Softmax(Softmaxes SharedScores::*result, SoftmaxScratch& buffer) {
    std::vector<Softmaxes>& results = first_.scratch.pass_softmaxes;
    if (passes_.empty()) return;
    results.resize(passes_.size());
    if (passes_.size() == 1) {
      results[0] = first_.SoftmaxOf(passes_[0].keys, passes_[0].queries, passes_[0].num_queries, buffer);
    } else {
      CountJointBytes(SoftmaxKeysJointly(first_.kernels, passes_, first_.model.score_form(), first_.scratch.joint,
                                         buffer, results));
    }
    HandOut(result, results);
  }

  void Score(Scores SharedScores::*result, ScratchBuffer<float>& buffer) {
    std::vector<Scores>& results = first_.scratch.pass_scores;
    if (passes_.empty()) return;
    results.resize(passes_.size());
    if (passes_.size() == 1) {
      results[0] = first_.ScoresOf(passes_[0].keys, passes_[0].queries, passes_[0].num_queries, buffer);
    } else {
      CountJointBytes(
          ScoreKeysJointly(first_.kernels, passes_, first_.model.score_form(), first_.scratch.joint, buffer, results));
    }
    HandOut(result, results);
  }

 private:
  template <typename T>
  void HandOut(T SharedScores::*result, const std::vector<T>& results) {
    size_t next = 0;
    for (size_t i = 0; i < heads_.size(); ++i) {
      if (wants_(heads_[i])) scores_[i].*result = results[next++];
    }
  }
  void CountJointBytes(uint64_t bytes) {
    uint64_t alone = 0;
    for (const KeyPass& pass : passes_) alone += pass.keys.key_bytes();
    first_.CountBytes(passes_[0].keys, bytes);
    first_.scratch.shared_key_bytes += alone - bytes;
  }

  const std::span<const HeadContext> heads_;
  const std::span<SharedScores> scores_;
  const WantsFn wants_;
  const HeadContext& first_;
  std::vector<KeyPass>& passes_;
};

}  // namespace

void ScoreShared(std::span<const HeadContext> heads, std::span<SharedScores> scores) {
  WINNOW_CHECK(heads.size() == scores.size() && !heads.empty());
  SelectScratch& scratch = heads[0].scratch;
  JointPass(heads, scores, WantsRowSoftmax, MeasuringPass).Softmax(&SharedScores::softmaxes, scratch.softmax);
  JointPass(heads, scores, WantsRowScores, RowPass).Score(&SharedScores::scores, scratch.scores);
  JointPass(heads, scores, WantsBounds, BoundsPass).Softmax(&SharedScores::bounds, scratch.bound_softmax);
  JointPass(heads, scores, WantsPageScores, PagePass).Score(&SharedScores::scores, scratch.scores);
  JointPass(heads, scores, WantsPageSoftmax, PagePass).Softmax(&SharedScores::softmaxes, scratch.page_softmax);
  const uint64_t scored = scratch.scored_key_bytes;
  JointPass(heads, scores, WantsMeasuringBounds, MeasuringBoundsPass)
      .Softmax(&SharedScores::measuring_bounds, scratch.measured);
  scratch.measured_key_bytes += std::exchange(scratch.scored_key_bytes, scored) - scored;
  for (size_t i = 0; i < heads.size(); ++i) {
    const bool bounds_select =
        !heads[i].scores_every_key && !SelectsByPageScores(heads[i]) && !WantsPageSoftmax(heads[i]);
    if (bounds_select) scores[i].softmaxes = scores[i].bounds;
  }
}

}  // namespace winnow
