#include "kernels/cpu/decode_attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/cpu/cpu_executor.h"

namespace winnow {
namespace {

// out = sum_i exp(m_i - M) o_i / sum_i exp(m_i - M) l_i over the list's tiles, in order, and a sink last.
// A tile's state lies as o [group, head_dim], m [group], l [group].
void MergeTiles(const float* states, int num_tiles, int group_size, int head_dim, const float* sinks, float* out,
                float* lse) {
  const int64_t state_floats = static_cast<int64_t>(group_size) * (head_dim + 2);
  for (int h = 0; h < group_size; ++h) {
    const float* m = states + group_size * head_dim + h;
    const float* l = m + group_size;
    float max = m[0];
    for (int t = 1; t < num_tiles; ++t) max = std::max(max, m[t * state_floats]);
    if (sinks != nullptr) max = std::max(max, sinks[h]);
    float sum = 0;
    float* to = out + h * head_dim;
    for (int d = 0; d < head_dim; ++d) to[d] = 0;
    for (int t = 0; t < num_tiles; ++t) {
      const float weight = std::exp(m[t * state_floats] - max);
      const float* from = states + t * state_floats + h * head_dim;
      sum += weight * l[t * state_floats];
      for (int d = 0; d < head_dim; ++d) to[d] += weight * from[d];
    }
    if (sinks != nullptr) sum += std::exp(sinks[h] - max);
    const float inverse = 1 / sum;
    for (int d = 0; d < head_dim; ++d) to[d] *= inverse;
    if (lse != nullptr) lse[h] = max + std::log(sum);
  }
}

}  // namespace

void RunDecodeAttention(Executor& executor, const DecodeAttentionParams& params, DecodeTileFunction tile) {
  CpuExecutor& cpu = CpuExecutor::From(executor);
  const int num_heads = params.num_rows * params.num_query_heads;
  const int group_size = params.num_query_heads / params.num_kv_heads;
  const int max_lists = params.list_heads == nullptr ? num_heads / group_size : num_heads;
  const int64_t state_floats = params.head_dim + 2;  // of one head and tile
  const char* pool = static_cast<const char*>(params.slot_pool);
  const size_t row_bytes = params.row.bytes(params.head_dim, params.kv_dtype);
  float* states = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(params.scratch) + 63) / 64 * 64);

  // Of the lists before i: first_tile[i] tiles, first_head[i] heads, first_state[i] pairs of a tile and a head.
  // open_tiles[i]: tiles of list i that are not done.
  static_assert(sizeof(std::atomic<int>) == sizeof(int));
  int* first_tile = cpu.shared_scratch.ReserveArray<int>(4 * (static_cast<size_t>(max_lists) + 1));
  int* first_head = first_tile + max_lists + 1;
  int* first_state = first_head + max_lists + 1;
  auto* open_tiles = reinterpret_cast<std::atomic<int>*>(first_state + max_lists + 1);
  first_tile[0] = first_head[0] = first_state[0] = 0;
  int num_lists = 0;
  for (; first_head[num_lists] < num_heads; ++num_lists) {
    const int i = num_lists;
    const int heads = params.list_heads == nullptr ? group_size : static_cast<int>(params.list_heads[i]);
    const int tiles = (static_cast<int>(params.slot_counts[i]) + kAttentionTile - 1) / kAttentionTile;
    first_tile[i + 1] = first_tile[i] + tiles;
    first_head[i + 1] = first_head[i] + heads;
    first_state[i + 1] = first_state[i] + tiles * heads;
    new (&open_tiles[i]) std::atomic<int>(tiles);
  }

  const auto run_item = [&](int item, int) {
    const int list = static_cast<int>(std::upper_bound(first_tile, first_tile + num_lists, item) - first_tile) - 1;
    const int begin = (item - first_tile[list]) * kAttentionTile;
    const int64_t head = first_head[list];
    const int num_sharing = first_head[list + 1] - first_head[list];
    float* list_states = states + first_state[list] * state_floats;
    float* state = list_states + (item - first_tile[list]) * num_sharing * state_floats;
    DecodeTile task;
    task.q = params.q + head * params.head_dim;
    task.group_size = num_sharing;
    task.head_dim = params.head_dim;
    task.scale = params.scale;
    task.score_cap = params.score_cap;
    task.kv_dtype = params.kv_dtype;
    task.row = params.row;
    const int left = static_cast<int>(params.slot_counts[list]) - begin;
    task.num_rows = std::min(kAttentionTile, left);
    task.num_following = std::min(kTileLookahead, left - task.num_rows);
    const char* rows[kAttentionTile + kTileLookahead];
    const uint32_t* slots = params.slots[list] + begin;
    for (int j = 0; j < task.num_rows + task.num_following; ++j) rows[j] = pool + slots[j] * row_bytes;
    task.rows = rows;
    task.o = state;
    task.m = state + num_sharing * params.head_dim;
    task.l = task.m + num_sharing;
    tile(task);
    if (open_tiles[list].fetch_sub(1, std::memory_order_acq_rel) == 1) {
      const float* sinks = params.sinks == nullptr ? nullptr : params.sinks + head % params.num_query_heads;
      MergeTiles(list_states, first_tile[list + 1] - first_tile[list], num_sharing, params.head_dim, sinks,
                 params.out + head * params.head_dim, params.lse == nullptr ? nullptr : params.lse + head);
    }
  };
  // Neighbouring tiles go to one worker, as a tile prefetches the next, but not so many that the team ends unevenly.
  const int num_tiles = first_tile[num_lists];
  cpu.team.ParallelFor(num_tiles, run_item, std::clamp(num_tiles / (8 * cpu.team.size()), 1, 8));
}

}  // namespace winnow
