#include "tools/engine/prefill_bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <random>

#include "common/base/status.h"

namespace winnow {
namespace {

constexpr int kSaverThreads = 6;
constexpr int kRepeats = 3;  // the first warms up
using Clock = std::chrono::steady_clock;

// Saves the rows of chunks behind the layers that complete them, a chunk behind the one that is enqueued, so that the
// GPU never waits for the host.
class ChunkSaver {
 public:
  ChunkSaver(device::Device& device, const DevicePrefill& prefill, device::FlashD2H& saver, const KvLayout& layout,
             std::byte* blocks)
      : prefill_(prefill),
        saver_(saver),
        layout_(layout),
        blocks_(blocks),
        stream_(device.NewStream(true)),
        complete_{NewEvents(device), NewEvents(device)} {}

  void OnRows(device::Stream stream, int chunk, int layer) { complete_[chunk % 2][layer]->Record(stream); }

  // Waits for room where two savings are under way.
  void Save(int chunk, uint32_t first, uint32_t count) {
    const size_t block_bytes = layout_.block_bytes();
    const auto per_list = static_cast<size_t>(prefill_.head_stride()) / kBlockTokens;
    std::vector<std::byte*> to(count / kBlockTokens);
    for (int layer = 0; layer < layout_.num_layers; ++layer) {
      complete_[chunk % 2][layer]->Hold(stream_);
      for (int head = 0; head < layout_.num_kv_heads; ++head) {
        const std::byte* rows =
            prefill_.rows(layer) + (head * static_cast<size_t>(prefill_.head_stride()) + first) * layout_.row_bytes();
        std::byte* const list = blocks_ + layout_.list(layer, head) * per_list * block_bytes;
        // Blocks of a list lie apart, as those of a pool that has served for a while.
        for (size_t i = 0; i < to.size(); ++i) {
          to[i] = list + (first / kBlockTokens + i) * 37 % per_list * block_bytes;
        }
        ticket_ = saver_.Save(stream_, rows, block_bytes, to);
      }
    }
  }
  void Await() { saver_.Await(ticket_); }

 private:
  using Events = std::vector<std::unique_ptr<device::Event>>;
  Events NewEvents(device::Device& device) const {
    Events events;
    for (int layer = 0; layer < layout_.num_layers; ++layer) events.push_back(device.NewEvent());
    return events;
  }

  const DevicePrefill& prefill_;
  device::FlashD2H& saver_;
  const KvLayout layout_;
  std::byte* const blocks_;
  const device::Stream stream_;
  const std::array<Events, 2> complete_;  // of even and odd chunks, by layer
  uint64_t ticket_ = 0;
};

}  // namespace

absl::StatusOr<double> PrefillBench::GemmRate() {
  constexpr size_t kSize = 8192, kBytes = kSize * kSize * 2;
  WINNOW_ASSIGN_OR_RETURN(const auto memory, device_.Allocate(3 * kBytes));
  WINNOW_ASSIGN_OR_RETURN(const auto workspace,
                          device_.Allocate(std::max<size_t>(256, table_.matmul->prefill_workspace_bytes(kSize))));
  auto* const data = static_cast<std::byte*>(memory->data());
  const device::Stream stream = device_.NewStream();
  table_.elementwise->fill_normal(stream, data, 2 * kSize * kSize, options_.seed, 1.0f);
  const auto plans = table_.matmul->open_prefill_plans();
  std::vector<double> times;
  for (int i = 0; i < 12; ++i) {
    WINNOW_ASSIGN_OR_RETURN(const double us, device_.TimeUs(stream, [&](device::Stream timed) {
      table_.matmul->prefill_matmul(timed,
                                    {.plans = plans.get(),
                                     .x = data,
                                     .x_stride = kSize,
                                     .num_rows = kSize,
                                     .weight = {.data = data + kBytes, .out_features = kSize, .in_features = kSize},
                                     .y = data + 2 * kBytes,
                                     .y_stride = kSize,
                                     .y_dtype = Dtype::kBf16,
                                     .workspace = workspace->data()});
    }));
    if (i >= 3) times.push_back(us);
  }
  return 2.0 * kSize * kSize * kSize / Median(std::move(times));
}

double PrefillBench::Flops(uint32_t tokens) const {
  const ModelConfig& config = weights_.config();
  const double n = tokens, hidden = config.hidden_size, layers = config.num_layers;
  const double rest = hidden * config.q_features() + config.active_mlp_weights() / layers;
  // The last layer gives its rows alone.
  double pairs = 0;  // of queries and keys that they see
  for (int layer = 0; layer + 1 < config.num_layers; ++layer) {
    const double window = config.window(layer) > 0 ? std::min<double>(config.window(layer), n) : n;
    pairs += window * (window + 1) / 2 + (n - window) * window;
  }
  return 2 * n * (layers * hidden * config.qkv_features() + (layers - 1) * rest) + 4 * config.q_features() * pairs;
}

absl::StatusOr<double> PrefillBench::TimeUntilSaved(DevicePrefill& prefill, const uint32_t* ids, uint32_t tokens,
                                                    std::byte* blocks) {
  const KvLayout layout = weights_.config().kv_layout(Dtype::kBf16);
  const auto chunk_tokens = static_cast<uint32_t>(options_.chunk_tokens);
  WINNOW_ASSIGN_OR_RETURN(const auto saver,
                          device::FlashD2H::Create(device_, chunk_tokens * layout.row_bytes(), kSaverThreads));
  ChunkSaver chunks(device_, prefill, *saver, layout, blocks);
  const device::Stream stream = device_.NewStream();
  WINNOW_RETURN_IF_ERROR(device_.SynchronizeAll());
  const Clock::time_point begin = Clock::now();
  const auto count_of = [&](uint32_t first) { return std::min(chunk_tokens, tokens - first); };
  int chunk = 0;
  for (uint32_t first = 0; first < tokens; first += chunk_tokens, ++chunk) {
    prefill.Chunk(stream, ids + first, first, static_cast<int>(count_of(first)),
                  [&](int layer) { chunks.OnRows(stream, chunk, layer); });
    if (first > 0) chunks.Save(chunk - 1, first - chunk_tokens, chunk_tokens);
  }
  const uint32_t last = (chunk - 1) * chunk_tokens;
  chunks.Save(chunk - 1, last, count_of(last));
  chunks.Await();
  WINNOW_RETURN_IF_ERROR(device_.SynchronizeAll());
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

absl::StatusOr<PrefillMeasurement> PrefillBench::Run(uint32_t tokens) {
  PrefillMeasurement result{.tokens = tokens, .flops = Flops(tokens)};
  WINNOW_ASSIGN_OR_RETURN(result.gemm_flops_per_us, GemmRate());
  WINNOW_ASSIGN_OR_RETURN(
      const auto layers,
      DeviceLayers::Create(table_, device_, weights_, {.max_prefill_rows = options_.chunk_tokens, .max_list_rows = 1}));
  WINNOW_ASSIGN_OR_RETURN(const auto prefill, DevicePrefill::Create(device_, *layers, tokens));
  std::vector<uint32_t> ids(tokens);
  std::mt19937_64 random(options_.seed);
  for (uint32_t& id : ids) id = static_cast<uint32_t>(random() % weights_.config().vocab_size);
  WINNOW_ASSIGN_OR_RETURN(const auto device_ids, device_.Allocate(tokens * sizeof(uint32_t)));
  const device::Stream stream = device_.NewStream(true);
  device_.CopyAsync(device_ids->data(), ids.data(), tokens * sizeof(uint32_t), stream);
  WINNOW_RETURN_IF_ERROR(device_.Synchronize(stream));
  const auto* on_device = static_cast<const uint32_t*>(device_ids->data());
  std::vector<double> times, until_saved;
  for (int i = 0; i < kRepeats; ++i) {
    WINNOW_ASSIGN_OR_RETURN(const double us, device_.TimeUs(stream, [&](device::Stream timed) {
      for (uint32_t done = 0; done < tokens; done += options_.chunk_tokens) {
        const auto count = std::min<uint32_t>(options_.chunk_tokens, tokens - done);
        prefill->Chunk(timed, on_device + done, done, static_cast<int>(count));
      }
    }));
    if (i >= 1) times.push_back(us);
  }
  if (tokens % kBlockTokens == 0) {
    // Written once before the clock runs: memory that has not been touched is not there yet.
    std::vector<std::byte> blocks(static_cast<size_t>(tokens) *
                                  weights_.config().kv_layout(Dtype::kBf16).token_bytes());
    for (int i = 1; i < kRepeats; ++i) {
      WINNOW_ASSIGN_OR_RETURN(until_saved.emplace_back(), TimeUntilSaved(*prefill, on_device, tokens, blocks.data()));
    }
    result.saved_us = Median(std::move(until_saved));
  }
  result.us = Median(std::move(times));
  return result;
}

}  // namespace winnow
