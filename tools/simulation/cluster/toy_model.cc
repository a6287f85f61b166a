#include "tools/simulation/cluster/toy_model.h"

#include <cstring>

#include "common/base/check.h"
#include "common/selection/selection_spec.h"
#include "inference_rank/service/fingerprint.h"

namespace winnow::simulation {
namespace {

constexpr int kLayers = 2;
constexpr int kHeadDim = 16;
constexpr int kRowFloats = 2 * kHeadDim;
constexpr int kHidden = 8;
constexpr uint64_t kQuery = 1, kPrediction = 2, kKey = 3, kLogit = 4, kEmbedding = 5;

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15ull ^ (b + 0xbf58476d1ce4e5b9ull);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// `count` floats of [-1, 1).
void Fill(float* values, int count, uint64_t key) {
  for (int i = 0; i < count; ++i) values[i] = static_cast<float>(Mix(key, i) >> 40) * 0x1.0p-23f - 1.0f;
}

uint64_t Embed(uint32_t token) {
  return Mix(kEmbedding, token);
}

// Keys and values: values carry what the row is, exactly.
void MakeRow(float* row, int layer, uint64_t state, uint32_t position) {
  const uint64_t key = Mix(Mix(state, position), kKey + 16 * layer);
  Fill(row, kRowFloats, key);
  row[kHeadDim] = static_cast<float>(position);
}

uint64_t DigestOf(const void* row) {
  uint64_t digest = 0;
  const auto* bytes = static_cast<const std::byte*>(row);
  for (int i = 0; i < kRowFloats; i += 2) {
    uint64_t word;
    std::memcpy(&word, bytes + i * sizeof(float), sizeof(word));
    digest = (digest ^ word) * 0x100000001b3ull;
    digest ^= digest >> 29;
  }
  return digest;
}

// The digests are added up, so that the order of the rows in memory does not matter.
uint64_t Leave(uint64_t state, int layer, uint64_t attended) {
  return Mix(Mix(state, attended), 100 + layer);
}

void FillLogits(float* logits, uint64_t state) {
  for (uint32_t id = 0; id < ToyModel::kVocab; ++id) {
    logits[id] = static_cast<float>(Mix(Mix(state, kLogit), id) >> 40) * 0x1.0p-24f * 12.0f;
  }
}

}  // namespace

KvLayout ToyModel::Layout() {
  return {.num_layers = kLayers, .num_query_heads = 1, .num_kv_heads = 1, .head_dim = kHeadDim, .dtype = Dtype::kF32};
}

v1::Fingerprint ToyModel::Fingerprint() {
  return InferenceFingerprint("toy", Layout(), ToyModel(nullptr), "toy");
}

ToyModel::ToyModel(std::function<void(int, int)> compute) : compute_(std::move(compute)) {
  rope_.inv_freq.assign(kHeadDim / 2, 0.01f);
  logits_.resize(size_t{kMaxDecodeRows} * kVocab);
}

std::span<float> ToyModel::Logits(std::span<const uint64_t> states) {
  for (size_t row = 0; row < states.size(); ++row) FillLogits(&logits_[row * kVocab], states[row]);
  return {logits_.data(), states.size() * kVocab};
}

std::span<float> ToyModel::DecodeByLayer(std::span<const uint32_t> token_ids, std::span<const uint32_t> positions,
                                         DecodeKv& kv) {
  const size_t num_rows = token_ids.size();
  compute_(static_cast<int>(num_rows), 0);
  states_.resize(num_rows);
  rows_.resize(num_rows * kRowFloats);
  queries_.resize(num_rows * kHeadDim);
  predictions_.resize(num_rows * kHeadDim);
  hidden_.assign(num_rows * kHidden, 0);
  for (size_t row = 0; row < num_rows; ++row) states_[row] = Embed(token_ids[row]);
  const int lookahead = kv.Lookahead();
  for (int layer = 0; layer < kLayers; ++layer) {
    for (size_t row = 0; row < num_rows; ++row) {
      MakeRow(&rows_[row * kRowFloats], layer, states_[row], positions[row]);
      Fill(&queries_[row * kHeadDim], kHeadDim, Mix(Mix(states_[row], layer), kQuery));
      Fill(&predictions_[row * kHeadDim], kHeadDim, Mix(Mix(states_[row], layer), kPrediction));
    }
    const bool predicts = lookahead > 0 && layer + lookahead < kLayers;
    kv.Publish({.layer = layer,
                .kv_rows = reinterpret_cast<const std::byte*>(rows_.data()),
                .q_pre_rope = queries_.data(),
                .prediction = predicts ? predictions_.data() : nullptr,
                .prediction_layer = layer + lookahead,
                .hidden = hidden_.data(),
                .hidden_size = kHidden});
    lists_.Clear();
    kv.AwaitSlots(layer, lists_);
    WINNOW_CHECK(lists_.size() == num_rows);
    for (size_t row = 0; row < num_rows; ++row) {
      uint64_t attended = 0;
      for (const uint32_t slot : lists_.slots(row)) attended += DigestOf(slots_ + slot * Layout().row_bytes());
      states_[row] = Leave(states_[row], layer, attended);
    }
    if (kv.WaitsForPartials()) kv.AwaitPartials(layer);
  }
  return Logits(states_);
}

std::span<float> ToyModel::Prefill(std::span<const uint32_t> token_ids, uint32_t first_position, bool last,
                                   PrefillKv& kv) {
  const size_t count = token_ids.size();
  compute_(0, static_cast<int>(count));
  std::vector<uint64_t> states;
  for (const uint32_t token : token_ids) states.push_back(Embed(token));
  rows_.resize(count * kRowFloats);
  queries_.resize(count * kHeadDim);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (size_t i = 0; i < count; ++i) {
      MakeRow(&rows_[i * kRowFloats], layer, states[i], first_position + static_cast<uint32_t>(i));
      Fill(&queries_[i * kHeadDim], kHeadDim, Mix(Mix(states[i], layer), kQuery));
    }
    const PrefillKv::Rows all = kv.Publish(layer, reinterpret_cast<const std::byte*>(rows_.data()), queries_.data());
    const auto* row = static_cast<const std::byte*>(all.kv);
    uint64_t attended = 0;
    for (uint32_t position = 0; position < first_position + count; ++position, row += Layout().row_bytes()) {
      attended += DigestOf(row);
      if (position < first_position) continue;
      uint64_t& state = states[position - first_position];
      state = Leave(state, layer, attended);
    }
  }
  return last ? Logits({&states.back(), 1}) : std::span<float>();
}

// Prompts go chunk by chunk (PrefillMode::kChunked).
void ToyModel::EmbedPrompt(std::span<const uint32_t>, ResidualPlaces) {
  WINNOW_CHECK(false);
}
void ToyModel::PrefillLayer(int, uint32_t, int, bool, ResidualPlaces, PrefillKv&) {
  WINNOW_CHECK(false);
}
std::span<float> ToyModel::PromptLogits(ResidualPlaces) {
  WINNOW_CHECK(false);
  return {};
}

std::vector<float> ToyModel::DenseLogits(std::span<const uint32_t> tokens) {
  std::vector<uint64_t> states;
  for (const uint32_t token : tokens) states.push_back(Embed(token));
  for (int layer = 0; layer < kLayers; ++layer) {
    uint64_t attended = 0;
    for (size_t position = 0; position < tokens.size(); ++position) {
      float row[kRowFloats];
      MakeRow(row, layer, states[position], static_cast<uint32_t>(position));
      attended += DigestOf(row);
      states[position] = Leave(states[position], layer, attended);
    }
  }
  std::vector<float> logits(kVocab);
  FillLogits(logits.data(), states.back());
  return logits;
}

}  // namespace winnow::simulation
