#include "tests/support/host_gpu/host_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "common/base/check.h"
#include "common/base/latent_shape.h"
#include "kernels/kernel_table.h"
#include "model/philox.h"
#include "tests/support/host_gpu/host_all_reduce.h"
#include "tests/support/host_gpu/host_attention.h"
#include "tests/support/host_gpu/host_chunk_sums.h"
#include "tests/support/host_gpu/host_cpu.h"
#include "tests/support/host_gpu/host_device.h"
#include "tests/support/host_gpu/host_exchange.h"
#include "tests/support/host_gpu/host_experts.h"
#include "tests/support/host_gpu/host_indexer.h"
#include "tests/support/host_gpu/host_latent.h"
#include "tests/support/host_gpu/host_nccl.h"
#include "tests/support/host_gpu/host_numbers.h"
#include "tests/support/host_gpu/host_weights.h"

namespace winnow::test {
namespace {

using device::Stream;

void Embed(Stream, const device::EmbedParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    const auto* from =
        static_cast<const uint16_t*>(p.embedding) + static_cast<size_t>(p.token_ids[row]) * p.hidden_size;
    for (int i = 0; i < p.hidden_size; ++i) {
      p.x[static_cast<size_t>(row) * p.hidden_size + i] = p.scale * Bf16ToF32(from[i]);
    }
  }
}

float InverseNorm(const float* x, int width, float epsilon) {
  double squares = 0;
  for (int i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * x[i];
  return static_cast<float>(1 / std::sqrt(squares / width + epsilon));
}

void RmsNorm(Stream, const device::RmsNormParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    const size_t first = static_cast<size_t>(row) * p.hidden_size;
    const int64_t from = row * (p.x_stride == 0 ? p.hidden_size : p.x_stride);
    std::vector<float> x(p.x + from, p.x + from + p.hidden_size);
    for (int i = 0; p.bias != nullptr && i < p.hidden_size; ++i) p.biased[from + i] = x[i] += p.bias[i];
    const float scale = p.weight == nullptr ? 1 : InverseNorm(x.data(), p.hidden_size, p.epsilon);
    auto* out = static_cast<uint16_t*>(p.out) + first;
    for (int i = 0; i < p.hidden_size; ++i) out[i] = F32ToBf16(x[i] * scale * (p.weight == nullptr ? 1 : p.weight[i]));
  }
}

void NormRows(Stream, const device::NormRowsParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    const float* const x = p.x + row * p.x_stride;
    float* const y = p.y + row * p.y_stride;
    const float scale = InverseNorm(x, p.width, p.epsilon);
    for (int i = 0; i < p.width; ++i) y[i] = (p.accumulate ? y[i] : 0) + x[i] * scale * p.weight[i];
  }
}

// Heads of which a part turns, in the order of ModelConfig::HeadShape.
std::vector<float> OrderedHeads(const float* heads, int num_heads, int head_dim, int rotary_dim) {
  const LatentShape shape = {.rank = head_dim - rotary_dim, .rope_dim = rotary_dim};
  std::vector<float> ordered(static_cast<size_t>(num_heads) * head_dim);
  for (int head = 0; head < num_heads; ++head) {
    const float* const from = heads + static_cast<size_t>(head) * head_dim;
    float* const to = ordered.data() + static_cast<size_t>(head) * head_dim;
    for (int i = 0; i < shape.rope_dim; ++i) to[shape.rope_place(i)] = from[i];
    for (int i = 0; i < shape.rank; ++i) to[shape.latent_place(i)] = from[shape.rope_dim + i];
  }
  return ordered;
}

void RopeAppend(Stream, const device::RopeAppendParams& p) {
  const size_t q_features = static_cast<size_t>(p.num_query_heads) * p.head_dim;
  const size_t features = q_features + 2 * static_cast<size_t>(p.num_kv_heads) * p.head_dim;
  const size_t row_bytes = RowLayout().bytes(p.head_dim, p.kv_dtype);
  std::vector<float> qkv(p.num_rows * features), q(p.num_rows * q_features), pre_rope(q.size());
  std::vector<std::byte> rows(p.num_rows * p.num_kv_heads * row_bytes);
  for (int row = 0; row < p.num_rows; ++row) {
    for (size_t i = 0; i < features; ++i) {
      qkv[row * features + i] = p.qkv[row * p.qkv_stride + i] + (p.qkv_bias == nullptr ? 0 : p.qkv_bias[i]);
    }
  }
  const int rotary_dim = p.rotary_dim == 0 ? p.head_dim : p.rotary_dim, turning = p.num_query_heads + p.num_kv_heads;
  for (int row = 0; row < p.num_rows; ++row) {
    float* const heads = qkv.data() + row * features;
    const std::vector<float> ordered = OrderedHeads(heads, turning, p.head_dim, rotary_dim);
    std::copy(ordered.begin(), ordered.end(), heads);
  }
  const auto norm = [&](const float* weight) {
    return weight == nullptr ? std::vector<float>() : OrderedHeads(weight, 1, p.head_dim, rotary_dim);
  };
  const std::vector<float> q_norm = norm(p.q_norm_weight), k_norm = norm(p.k_norm_weight);
  Cpu().rope_append(Team(), {.qkv = qkv.data(),
                             .qkv_stride = static_cast<int64_t>(features),
                             .num_rows = p.num_rows,
                             .num_query_heads = p.num_query_heads,
                             .num_kv_heads = p.num_kv_heads,
                             .head_dim = p.head_dim,
                             .q_norm_weight = q_norm.empty() ? nullptr : q_norm.data(),
                             .k_norm_weight = k_norm.empty() ? nullptr : k_norm.data(),
                             .norm_epsilon = p.norm_epsilon,
                             .positions = p.positions,
                             .rope_inv_freq = p.rope_inv_freq,
                             .rope_attention_factor = p.rope_attention_factor,
                             .kv_dtype = p.kv_dtype,
                             .q_pre_rope = pre_rope.data(),
                             .q = q.data(),
                             .kv_rows = rows.data()});
  if (p.q != nullptr) std::copy(q.begin(), q.end(), p.q);
  if (p.q_bf16 != nullptr) Store(q, Dtype::kBf16, p.q_bf16);
  const size_t kv_bytes = p.num_kv_heads * row_bytes;
  const size_t q_stride = p.q_pre_rope_stride == 0 ? q_features : p.q_pre_rope_stride;
  const size_t kv_stride = p.kv_copy_stride == 0 ? kv_bytes : p.kv_copy_stride;
  for (int row = 0; row < p.num_rows; ++row) {
    const auto region = p.copy_regions == nullptr ? 0 : reinterpret_cast<intptr_t>(p.copy_regions[row]);
    if (p.copy_regions != nullptr && region == 0) continue;
    if (p.q_pre_rope != nullptr) {
      auto* const out = reinterpret_cast<float*>(reinterpret_cast<intptr_t>(p.q_pre_rope) + region);
      std::copy_n(pre_rope.begin() + row * q_features, q_features, out + row * q_stride);
    }
    if (p.kv_copy != nullptr) {
      auto* const out = reinterpret_cast<std::byte*>(reinterpret_cast<intptr_t>(p.kv_copy) + region);
      std::memcpy(out + row * kv_stride, rows.data() + row * kv_bytes, kv_bytes);
    }
  }
  for (size_t i = 0; p.kv_destinations != nullptr && i < static_cast<size_t>(p.num_rows) * p.num_kv_heads; ++i) {
    if (p.kv_destinations[i] == nullptr) continue;
    const std::byte* const row = rows.data() + i * row_bytes;
    auto* const to = static_cast<std::byte*>(p.kv_destinations[i]);
    if (p.slot_scales == nullptr) {
      std::memcpy(to, row, row_bytes);
      continue;
    }
    const size_t code_bytes = 2 * static_cast<size_t>(p.head_dim);
    std::memcpy(to, row, code_bytes);
    const size_t slot = static_cast<size_t>(to - static_cast<const std::byte*>(p.slot_pool)) / code_bytes;
    std::memcpy(p.slot_scales + 2 * slot, row + code_bytes, 2 * sizeof(float));
  }
}

void GatedMul(Stream, const device::GatedMulParams& p) {
  const size_t n = p.intermediate_size;
  for (int row = 0; row < p.num_rows; ++row) {
    for (size_t i = 0; i < n; ++i) {
      const size_t gate = row * 2 * n + i, up = gate + n;
      const bool f32 = p.dtype == Dtype::kF32;
      const auto* wide = static_cast<const float*>(p.gate_up);
      const auto* narrow = static_cast<const uint16_t*>(p.gate_up);
      const float g = f32 ? wide[gate] : Bf16ToF32(narrow[gate]), u = f32 ? wide[up] : Bf16ToF32(narrow[up]);
      static_cast<uint16_t*>(p.out)[row * n + i] = F32ToBf16(Activate(p.activation, g, u));
    }
  }
}

size_t NoScratch(int, int) {
  return 0;
}

// As Sampler draws: all candidates in descending order, sums in f64.
uint32_t DrawToken(const device::SampleRow& row, std::vector<float> logits) {
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
  if (row.temperature <= 0) return order[0];
  if (row.top_k > 0) order.resize(std::min<size_t>(row.top_k, order.size()));
  std::vector<double> weights;
  for (const uint32_t id : order) {
    weights.push_back(std::exp(static_cast<double>(logits[id] / row.temperature) - logits[order[0]] / row.temperature));
  }
  const auto sum = [&](size_t count) { return std::accumulate(weights.begin(), weights.begin() + count, 0.0); };
  if (row.top_p < 1) {
    size_t kept = 1;
    while (kept < weights.size() && sum(kept) < row.top_p * sum(weights.size())) ++kept;
    weights.resize(kept);
  }
  while (row.min_p > 0 && weights.size() > 1 && weights.back() < row.min_p) weights.pop_back();
  double left = PhiloxUniform(row.seed, row.sample_index, row.token_index) * sum(weights.size());
  size_t drawn = 0;
  while (drawn + 1 < weights.size() && (left -= weights[drawn]) >= 0) ++drawn;
  return order[drawn];
}

void Sample(Stream, const device::SampleParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    float* const logits = p.logits + static_cast<size_t>(row) * p.vocab_size;
    if (row < 64 && (p.masked_rows >> row & 1) != 0) {
      const uint64_t* const mask = p.masks + static_cast<size_t>(row) * p.mask_words;
      for (int id = 0; id < p.vocab_size; ++id) {
        if ((mask[id / 64] >> (id % 64) & 1) == 0) logits[id] = -std::numeric_limits<float>::infinity();
      }
    }
    p.token_ids[row] = DrawToken(p.rows[row], {logits, logits + p.vocab_size});
  }
}

template <typename Params>
void Matmul(void (*cpu)(Executor&, const MatmulParams&), const Params& p) {
  const int in = p.weight.in_features, out = p.weight.out_features;
  std::vector<float> x(static_cast<size_t>(p.num_rows) * in), y(static_cast<size_t>(p.num_rows) * out);
  for (int row = 0; row < p.num_rows; ++row) {
    const std::vector<float> one = ArrayFromBf16(static_cast<const uint16_t*>(p.x) + row * p.x_stride, in);
    std::copy(one.begin(), one.end(), x.begin() + static_cast<size_t>(row) * in);
  }
  cpu(Team(), {.x = x.data(),
               .x_stride = in,
               .num_rows = p.num_rows,
               .weight = PackedOf(p.weight),
               .y = y.data(),
               .y_stride = out});
  for (int row = 0; row < p.num_rows; ++row) {
    for (int i = 0; i < out; ++i) {
      const float value = y[static_cast<size_t>(row) * out + i];
      const size_t at = static_cast<size_t>(row * p.y_stride + i);
      if (p.y_dtype == Dtype::kBf16) {
        static_cast<uint16_t*>(p.y)[at] = F32ToBf16(value);
      } else {
        float& sum = static_cast<float*>(p.y)[at];
        sum = p.accumulate ? sum + value : value;
      }
    }
  }
}

void DecodeMatmul(Stream, const device::DecodeMatmulParams& p) {
  if (p.term.num_ranks == 0) return Matmul(Cpu().decode_matmul, p);
  std::vector<float> y(static_cast<size_t>(p.num_rows * p.y_stride));
  device::DecodeMatmulParams own = p;
  own.y = y.data();
  Matmul(Cpu().decode_matmul, own);
  GiveTerm(y, p.term);
}
void AddTerms(Stream stream, const device::AddTermsParams& p) {
  TakeTerms(p);
  if (p.weight == nullptr) return;
  RmsNorm(stream, {.x = p.x,
                   .num_rows = p.num_rows,
                   .hidden_size = p.hidden_size,
                   .weight = p.weight,
                   .epsilon = p.epsilon,
                   .out = p.out});
}
void PrefillMatmul(Stream, const device::PrefillMatmulParams& p) {
  Matmul(Cpu().prefill_matmul, p);
}
size_t PrefillWorkspace(int) {
  return 0;
}

void BeginChunk(Stream, const device::BeginChunkParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    p.positions[row] = p.first_position + row;
    for (int head = 0; head < p.num_kv_heads; ++head) {
      p.kv_destinations[row * p.num_kv_heads + head] =
          static_cast<std::byte*>(p.rows) + (head * p.head_stride + p.first_position + row) * p.row_bytes;
    }
  }
}

void MoveInt8Rows(const device::MoveRowsParams& p) {
  const device::Int8Slots& slots = p.int8_slots;
  const size_t row_bytes = slots.row_bytes();
  struct Parts {
    std::byte *codes, *scales;
  };
  const auto parts_at = [&](const void* address) {
    auto* const at = static_cast<std::byte*>(const_cast<void*>(address));
    const auto slot = static_cast<size_t>(at - static_cast<std::byte*>(slots.codes)) / row_bytes;
    if (at < slots.codes || slot >= slots.num_slots) return Parts{at, at + slots.code_bytes};
    return Parts{static_cast<std::byte*>(slots.codes_at(address)),
                 reinterpret_cast<std::byte*>(slots.scales() + 2 * slot)};
  };
  for (uint32_t i = p.num_moves; i > 0; --i) {
    for (size_t offset = 0; offset < p.row_bytes; offset += row_bytes) {
      const Parts from = parts_at(static_cast<const std::byte*>(p.moves[i - 1].from) + offset);
      const Parts to = parts_at(static_cast<std::byte*>(p.moves[i - 1].to) + offset);
      std::memcpy(to.codes, from.codes, slots.code_bytes);
      std::memcpy(to.scales, from.scales, device::Int8Slots::kScaleBytes);
    }
  }
}

// In an order of its own: whoever counts on another one sees it here.
void MoveRows(Stream, const device::MoveRowsParams& p) {
  if (p.int8_slots.codes != nullptr) return MoveInt8Rows(p);
  for (uint32_t i = p.num_moves; i > 0; --i) std::memcpy(p.moves[i - 1].to, p.moves[i - 1].from, p.row_bytes);
}

// Members that are not named stay null.
struct HostKernels {
  device::AttentionKernels attention = HostAttentionKernels();
  device::CacheKernels cache = HostCacheKernels();
  device::ChunkSumKernels chunk_sums{.add_chunk = AddChunkOnHost};
  device::DigestKernels digest = HostDigestKernels();
  device::ExpertKernels experts = HostExpertKernels();
  device::AttendedMassKernels mass = HostAttendedMassKernels();
  device::PredictKernels predict = HostPredictKernels();
  device::SelectionKernels selection = HostSelectionKernels();
  device::PageUnitKernels page_units = HostPageUnitKernels();
  device::ElementwiseKernels elementwise{};
  device::IndexerKernels indexer = HostIndexerKernels();
  device::LatentKernels latent = HostLatentKernels();
  device::MatmulKernels matmul{};
  device::PrefillAttentionKernels prefill = HostPrefillKernels();
  device::RowKernels rows{};
  device::StepKernels step{};
  device::AllReduceKernels all_reduce{};
  device::DeviceTable table;

  HostKernels() {
    elementwise.embed = Embed;
    elementwise.rms_norm = RmsNorm;
    elementwise.rope_append = RopeAppend;
    elementwise.norm_rows = NormRows;
    elementwise.gated_mul = GatedMul;
    elementwise.sample_scratch_bytes = NoScratch;
    elementwise.sample = Sample;
    AddHostWeightKernels(matmul);
    matmul.decode_scratch_bytes = NoScratch;
    matmul.decode_matmul = DecodeMatmul;
    matmul.open_prefill_plans = [] { return std::unique_ptr<device::PrefillPlans>(); };
    matmul.prefill_workspace_bytes = PrefillWorkspace;
    matmul.prefill_matmul = PrefillMatmul;
    rows.move_rows = MoveRows;
    step.begin_chunk = BeginChunk;
    AddHostStepKernels(step);
    all_reduce.add_terms = AddTerms;
    table.abi = device::kDeviceAbi;
    table.attention = &attention;
    table.cache = &cache;
    table.chunk_sums = &chunk_sums;
    table.digest = &digest;
    table.experts = &experts;
    table.mass = &mass;
    table.predict = &predict;
    table.page_units = &page_units;
    table.selection = &selection;
    table.elementwise = &elementwise;
    table.indexer = &indexer;
    table.latent = &latent;
    table.matmul = &matmul;
    table.prefill = &prefill;
    table.rows = &rows;
    table.step = &step;
    table.all_reduce = &all_reduce;
    table.device_count = [] { return kHostDevices; };
    table.why_none = [] { return "there is host memory"; };
    table.open_device = OpenHostDevice;
    table.new_nccl_id = NewHostNcclId;
    table.open_nccl_pair = OpenHostNcclPair;
    table.versions = [] { return device::DriverVersions(); };
    table.can_access_peer = [](int, int) { return true; };
  }
};

}  // namespace

const device::DeviceTable& HostGpuTable() {
  static const HostKernels kernels;
  return kernels.table;
}

}  // namespace winnow::test
