#include "kernels/cuda/select/list_kernels.cuh"
#include "kernels/cuda/select/score_list.cuh"

namespace winnow::device {

template void ScoreKeysOf<UnitFormat::kI8>(Stream, const ScoreLaunch&);
template void LaunchListSelectOf<UnitFormat::kI8>(Stream, const ListLaunch&);

}  // namespace winnow::device
