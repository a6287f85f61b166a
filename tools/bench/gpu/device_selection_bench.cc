#include "tools/bench/gpu/device_selection_bench.h"

#include <cmath>
#include <numeric>

#include "absl/strings/str_format.h"
#include "cache_rank/select/device/select_graph.h"
#include "common/model/rope.h"
#include "common/model/synthetic_models.h"
#include "common/selection/presets.h"
#include "tools/bench/gpu/checks/digest_check.h"

namespace winnow {
namespace {

constexpr int kLayers = 4;    // with caches of their own, so that none is in L2
constexpr int kVariants = 8;  // of queries, so that something is missing
constexpr uint32_t kContext = 32768;
constexpr float kQueryScale = 4;  // scores of this standard deviation: some hundred rows hold most of a softmax

// Sequences of random KV at kContext tokens, and a peer in the same memory.
class BenchCache {
 public:
  BenchCache(GpuContext& gpu, const SelectionSpec& spec, int rows) : gpu_(gpu), rows_(rows) {
    config_ = SyntheticModelConfig("synthetic:qwen3-14b").value();
    config_.num_layers = kLayers;
    const KvLayout layout = config_.kv_layout(Dtype::kBf16);
    store_ = DeviceKvStore::Create(&gpu.table, &gpu.device,
                                   DeviceKvShapeFor(spec, layout, rows, kContext + 64, rows * (kContext + 64ull)))
                 .value();
    plan_ = DevicePlan::Create(&gpu.table, &gpu.device, store_.get(), spec, rows).value();
    exchange_ = {
        .layout = layout, .max_rows = rows, .hidden_size = config_.hidden_size, .max_budget = plan_->max_budget()};
    const size_t pages = layout.num_lists() * store_->shape().peer_pages();
    peer_ = device::InferenceInboxAt(exchange_, gpu.NewZeroed<std::byte>(device::InferenceInboxBytes(exchange_)),
                                     gpu.NewZeroed<std::byte>(device::InferenceFlagsBytes(exchange_)),
                                     gpu.New<std::byte>(rows * pages * kSlotPageTokens * layout.row_bytes()));
    for (int variant = 0; variant < kVariants; ++variant) {
      inboxes_.push_back(device::CacheInboxAt(exchange_, gpu.New<std::byte>(device::CacheInboxBytes(exchange_))));
      const std::vector<uint32_t> raised(kLayers, 1u << 30);  // every wait has ended
      for (uint32_t* flags : {inboxes_.back().hidden_flags, inboxes_.back().rows_flags}) {
        gpu.device.CopyAsync(flags, raised.data(), raised.size() * sizeof(uint32_t), gpu.stream);
      }
    }
    MakeQueries();
    weights_ = DeviceWeights::Synthesize(gpu.table, gpu.device, config_, 7, /*query_bias=*/false,
                                         {.dtype = Dtype::kBf16, .shard = {}, .parts = WeightParts::kQueryProjections})
                   .value();
    const RopeTable rope = ComputeRope(config_.rope, config_.head_dim);
    selection_ = DeviceSelection::Create(&gpu.table, &gpu.device, store_.get(), plan_.get(),
                                         {.rope = {rope.inv_freq, rope.attention_factor},
                                          .attention_scale = 1 / std::sqrt(static_cast<float>(config_.head_dim)),
                                          .queries = weights_.get()},
                                         exchange_)
                     .value();
    for (int row = 0; row < rows; ++row) OpenSequence(row);
    plan_->Upload(gpu.stream);
    plan_->EnqueueBegin(gpu.stream, rows);
    WINNOW_CHECK(gpu.device.Synchronize(gpu.stream).ok());
  }

  enum class Begin { kQueries, kOwn, kHidden, kPast };
  // Median time of a layer, from queries, own queries or the residual to the delta, or as far as the selection.
  double LayerUs(Begin begin, bool push) {
    const PlanBucket bucket{.num_rows = rows_, .max_keys = kContext + 64, .none_below = true};
    return gpu_.MedianUs(kLayers * kVariants, kLayers * kVariants, [&](device::Stream stream, int set) {
      const int layer = set % kLayers;
      const device::CacheInbox& inbox = inboxes_[set / kLayers];
      // One plan for each pass over the layers. Its rows stay where they are.
      if (layer == 0) plan_->EnqueueBegin(stream, 0);
      if (push) {
        const uint32_t* flags = begin == Begin::kHidden ? inbox.hidden_flags : inbox.rows_flags;
        gpu_.table.cache->wait(stream, {.flag = flags + layer, .value = plan_->plan()});
      }
      if (begin == Begin::kOwn) selection_->EnqueueOwnQueries(stream, bucket, layer, inbox);
      if (begin == Begin::kHidden) selection_->EnqueueDepthQueries(stream, bucket, layer, layer, inbox);
      if (begin == Begin::kPast) selection_->EnqueuePastQueries(stream, bucket, layer);
      selection_->EnqueueSelect(stream, bucket, layer);
      if (push) selection_->EnqueuePush(stream, bucket, layer, peer_);
    });
  }
  double QueriesUs(Begin begin) {
    const PlanBucket bucket{.num_rows = rows_, .max_keys = kContext + 64, .none_below = true};
    return gpu_.MedianUs(kLayers * kVariants, kLayers * kVariants, [&](device::Stream stream, int set) {
      const device::CacheInbox& inbox = inboxes_[set / kLayers];
      if (begin == Begin::kOwn) selection_->EnqueueOwnQueries(stream, bucket, set % kLayers, inbox);
      if (begin == Begin::kHidden) selection_->EnqueueDepthQueries(stream, bucket, set % kLayers, set % kLayers, inbox);
      if (begin == Begin::kPast) selection_->EnqueuePastQueries(stream, bucket, set % kLayers);
    });
  }

  // Median time of a layer's captured masses, of all rows: their positions are to be measured.
  double MassUs() {
    const PlanBucket bucket{.num_rows = rows_, .max_keys = kContext + 64, .none_below = true};
    return gpu_.MedianUs(kLayers * kVariants, kLayers * kVariants, [&](device::Stream stream, int set) {
      selection_->EnqueueRealQueries(stream, bucket, set % kLayers, inboxes_[set / kLayers]);
      selection_->EnqueueMass(stream, bucket, set % kLayers, peer_);
    });
  }
  // Median time of the digests of what a layer attends to, of the last pass of LayerUs.
  double DigestUs() {
    const PlanBucket bucket{.num_rows = rows_, .max_keys = kContext + 64, .none_below = true};
    return gpu_.MedianUs(1, kLayers * kVariants,
                         [&](device::Stream stream, int) { selection_->EnqueueDigest(stream, bucket, peer_); });
  }

  // Of the layer that was selected last: rows selected, and missing, per list.
  std::pair<double, double> Counts() {
    const size_t lists = static_cast<size_t>(rows_) * config_.num_kv_heads;
    const auto mean = [&](const uint32_t* words) {
      const std::vector<uint32_t> counts = gpu_.Download(words, lists);
      return std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(lists);
    };
    return {mean(selection_->counts(kLayers - 1)), mean(selection_->missing_counts(kLayers - 1))};
  }

  double key_bytes() const { return config_.head_dim * (store_->shape().key_copy ? 1.0 : 2.0) + 4; }
  double lists() const { return static_cast<double>(rows_) * config_.num_kv_heads; }
  double query_weight_bytes() const { return 2.0 * config_.hidden_size * config_.q_features(); }

 private:
  std::vector<float> RandomFloats(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(gpu_.random);
    return values;
  }

  // Variants share most of what they are, as queries of neighbouring positions do.
  void MakeQueries() {
    std::normal_distribution<float> normal;
    const size_t floats = static_cast<size_t>(kLayers) * rows_ * config_.q_features();
    const size_t hidden = static_cast<size_t>(kLayers) * rows_ * config_.hidden_size;
    std::vector<float> common(floats), queries(floats), common_hidden(hidden), residual(hidden);
    for (float& q : common) q = normal(gpu_.random);
    for (float& x : common_hidden) x = normal(gpu_.random);
    for (const device::CacheInbox& inbox : inboxes_) {
      for (size_t i = 0; i < floats; ++i) queries[i] = kQueryScale * (0.9f * common[i] + 0.44f * normal(gpu_.random));
      for (size_t i = 0; i < hidden; ++i) residual[i] = 0.9f * common_hidden[i] + 0.44f * normal(gpu_.random);
      gpu_.device.CopyAsync(inbox.queries, queries.data(), floats * sizeof(float), gpu_.stream);
      gpu_.device.CopyAsync(inbox.hidden, residual.data(), hidden * sizeof(float), gpu_.stream);
      WINNOW_CHECK(gpu_.device.Synchronize(gpu_.stream).ok());
    }
  }

  void OpenSequence(int row) {
    constexpr uint32_t kChunk = 4096;
    const KvLayout& layout = exchange_.layout;
    const uint32_t sequence = store_->Open(kContext + 64, gpu_.stream).value();
    if (chunk_ == nullptr) chunk_ = gpu_.New<std::byte>(kChunk * layout.num_kv_heads * layout.row_bytes());
    uint64_t seed = static_cast<uint64_t>(row) << 32;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (uint32_t first = 0; first < kContext; first += kChunk) {
        gpu_.table.elementwise->fill_normal(gpu_.stream, chunk_,
                                            size_t{kChunk} * layout.num_kv_heads * 2 * layout.head_dim, ++seed, 1);
        WINNOW_CHECK(store_->AppendRange(sequence, layer, first, kChunk, chunk_, gpu_.stream).ok());
      }
      if (const uint32_t past = store_->shape().ring_queries; past > 0) {
        if (past_queries_ == nullptr) past_queries_ = gpu_.Upload(RandomFloats(size_t{past} * config_.q_features()));
        WINNOW_CHECK(store_->LoadPastQueries(sequence, layer, kContext, past, past_queries_, gpu_.stream).ok());
      }
    }
    std::vector<uint32_t> pages(layout.num_lists() * store_->shape().peer_pages());
    std::iota(pages.begin(), pages.end(), static_cast<uint32_t>(row * pages.size()));
    WINNOW_CHECK(store_->SetPeerPages(sequence, pages, gpu_.stream).ok());
    const std::vector<uint32_t> bases(layout.num_lists());
    plan_->SetRow(row, sequence, kContext, {.slot_pool = peer_.slot_pool, .pool_bases = bases});
  }

  GpuContext& gpu_;
  const int rows_;
  ModelConfig config_;
  std::unique_ptr<DeviceKvStore> store_;
  std::unique_ptr<DevicePlan> plan_;
  std::unique_ptr<DeviceWeights> weights_;
  std::unique_ptr<DeviceSelection> selection_;
  device::ExchangeShape exchange_;
  device::InferenceInbox peer_;
  std::vector<device::CacheInbox> inboxes_;  // [kVariants]
  std::byte* chunk_ = nullptr;
  float* past_queries_ = nullptr;
};

using Begin = BenchCache::Begin;

SelectionSpec TwoStage() {
  SelectionSpec spec = FindPreset("depth").value();
  spec.scorer = Scorer::kTwoStage;
  spec.key_copy = KeyCopy::kInt8;
  return spec;
}

// Times of one specification: selection alone, from a layer's own queries, from the residual.
void BenchSpec(GpuContext& gpu, const std::string& name, const SelectionSpec& spec, int rows,
               double read_bytes_per_list, double select_goal_us, double chain_goal_us) {
  {
    BenchCache cache(gpu, spec, rows);
    const double floor_us = read_bytes_per_list * cache.lists() / gpu.read_bytes_per_us;
    const std::string what = absl::StrFormat("%s, 32k, B = %d: ", name, rows);
    const double rotate_us = cache.QueriesUs(Begin::kOwn);
    const double select_us = cache.LayerUs(Begin::kOwn, /*push=*/false);
    const auto [selected, missing] = cache.Counts();
    gpu.report.Note(what + "per list", absl::StrFormat("%.0f rows selected, %.0f missing", selected, missing));
    gpu.report.Time(what + "rotate queries", rotate_us, 0);
    gpu.report.Time(what + "score, select, assign slots", select_us - rotate_us, floor_us, select_goal_us);
    gpu.report.Time(what + "queries to delta", cache.LayerUs(Begin::kOwn, /*push=*/true), floor_us, chain_goal_us);
    const double keys_us = kContext * cache.key_bytes() * cache.lists() / gpu.read_bytes_per_us;
    gpu.report.Time(what + "captured mass of all rows", cache.MassUs(), keys_us);
    gpu.report.Time(what + "digest of what is attended to (in L2)", cache.DigestUs(), 0);
    if (PredictsFromPast(spec.predictor)) {
      gpu.report.Time(what + "predict queries", cache.QueriesUs(Begin::kPast), 0);
      gpu.report.Time(what + "past to delta", cache.LayerUs(Begin::kPast, /*push=*/true), floor_us);
    }
    if (spec.predictor == Predictor::kDepth) {
      const double weights_us = cache.query_weight_bytes() / gpu.read_bytes_per_us;
      gpu.report.Time(what + "project queries", cache.QueriesUs(Begin::kHidden), weights_us);
      gpu.report.Time(what + "residual to delta", cache.LayerUs(Begin::kHidden, /*push=*/true), floor_us + weights_us);
    }
  }
  gpu.FreeAll();
}

}  // namespace

void BenchDeviceSelection(GpuContext& gpu) {
  BenchAttendedDigests(gpu);
  const SelectionSpec two_stage = TwoStage(), winnow = FindPreset("winnow").value();
  const double head_dim = 128, key = head_dim + 4, bf16_key = 2 * head_dim;
  const double bounds = kContext / 16.0 * 4 * head_dim;
  const double candidates = 4.0 * 2048 * key;
  for (const int rows : {8, 1}) {
    const bool goals = rows == 8;
    BenchSpec(gpu, "two-stage fp8", two_stage, rows, bounds + candidates, goals ? 40 : 0, goals ? 60 : 0);
    BenchSpec(gpu, "winnow (two-stage fp8, mass)", winnow, rows, bounds + candidates, 0, 0);
    SelectionSpec every_key = winnow;
    every_key.scorer = Scorer::kToken;
    BenchSpec(gpu, "winnow, every key (fp8, mass)", every_key, rows, kContext * key, 0, 0);
    SelectionSpec temporal = FindPreset("async-token").value();
    BenchSpec(gpu, "async-token (every key in fp8)", temporal, rows, kContext * key, 0, 0);
    temporal.key_copy = KeyCopy::kNone;
    BenchSpec(gpu, "async-token (every key in bf16)", temporal, rows, kContext * bf16_key, 0, 0);
  }
}

}  // namespace winnow
