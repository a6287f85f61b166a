#include "tools/bench/gpu/checks/digest_check.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/kv_layout.h"
#include "kernels/device/params/predict.h"

namespace winnow {
namespace {

struct Shape {
  int num_layers, num_rows, num_kv_heads;
  size_t row_bytes;
  uint32_t selected;  // at most, of a list
};

// Slots with random rows, and lists that lie in them as in working sets.
class AttendedLists {
 public:
  AttendedLists(GpuContext& gpu, const Shape& shape) : gpu_(gpu), shape_(shape) {
    const size_t num_lists = static_cast<size_t>(shape.num_layers) * per_layer();
    const uint32_t ring_base = 4, pool_base = ring_base + kRing, pool = 2 * shape.selected;
    const uint32_t pages_per_list = (pool_base + pool + kSlotPageTokens - 1) / kSlotPageTokens;
    pages_.resize(num_lists * pages_per_list);
    std::iota(pages_.begin(), pages_.end(), 0u);
    std::shuffle(pages_.begin(), pages_.end(), gpu.random);
    slots_.resize(pages_.size() * kSlotPageTokens * shape.row_bytes / sizeof(uint64_t));
    for (uint64_t& word : slots_) word = gpu.random();
    for (int row = 0; row < shape.num_rows; ++row) {
      const bool sits = shape.num_rows < 3 || row != 1;
      positions_.push_back(sits ? 5000 + static_cast<uint32_t>(gpu.random() % 999) : device::kNoPosition);
    }
    std::vector<uint32_t> order(pool);
    for (size_t list = 0; list < num_lists; ++list) {
      std::iota(order.begin(), order.end(), 0u);
      std::shuffle(order.begin(), order.end(), gpu.random);
      const uint32_t position = positions_[list % per_layer() / shape.num_kv_heads];
      lists_.push_back({.first_page = static_cast<uint32_t>(list * pages_per_list),
                        .sinks = 4,
                        .selected_first = static_cast<uint32_t>(list * shape.selected),
                        .selected_count = shape.selected - static_cast<uint32_t>(list % 7),
                        .pool_base = pool_base,
                        .ring_base = ring_base,
                        .ring_tokens = kRing,
                        .recent_begin = position - 70 - static_cast<uint32_t>(list % 5),
                        .recent_count = 71 + static_cast<uint32_t>(list % 5),
                        .num_pages = pages_per_list});
      selected_.insert(selected_.end(), order.begin(), order.begin() + shape.selected);
    }
    device_slots_ = gpu.Upload(slots_);
    plan_ = gpu.NewZeroed<uint32_t>(1);
    digests_ = gpu.New<device::RowDigest>(per_layer());
    params_ = {.plan = {.num_layers = shape.num_layers,
                        .num_rows = shape.num_rows,
                        .num_kv_heads = shape.num_kv_heads,
                        .layer_lists = static_cast<int64_t>(per_layer()),
                        .row_bytes = shape.row_bytes,
                        .positions = gpu.Upload(positions_),
                        .plan = plan_,
                        .sums = gpu.NewZeroed<uint64_t>(per_layer()),
                        .arrivals = gpu.NewZeroed<uint32_t>(per_layer())},
               .lists = gpu.Upload(lists_),
               .pages = gpu.Upload(pages_),
               .selected = gpu.Upload(selected_),
               .slot_pool = device_slots_,
               .digests = digests_};
  }

  void Enqueue(device::Stream stream) { gpu_.table.digest->attended_digest(stream, params_); }

  // Entries of plan `number` that are not as the definition has them.
  int NumWrong(uint32_t number) {
    gpu_.device.CopyAsync(plan_, &number, sizeof number, gpu_.stream);
    Enqueue(gpu_.stream);
    const auto digests = gpu_.Download(digests_, per_layer());
    int wrong = 0;
    for (size_t entry = 0; entry < per_layer(); ++entry) {
      if (positions_[entry / shape_.num_kv_heads] == device::kNoPosition) continue;
      wrong += digests[entry].plan != number || digests[entry].digest != DigestOf(number, entry);
    }
    return wrong;
  }

  // Flips a bit of the last selected row of a list, on the device alone.
  void Damage(uint32_t number, size_t entry) {
    const device::AttentionList& list = lists_[number % shape_.num_layers * per_layer() + entry];
    const uint32_t last = selected_[list.selected_first + list.selected_count - 1];
    const size_t word = SlotOf(list, list.pool_base + last) * shape_.row_bytes / sizeof(uint64_t) + 11;
    const uint64_t damaged = slots_[word] ^ uint64_t { 1 } << 63;
    gpu_.device.CopyAsync(device_slots_ + word, &damaged, sizeof damaged, gpu_.stream);
    WINNOW_CHECK(gpu_.device.Synchronize(gpu_.stream).ok());
  }

 private:
  static constexpr uint32_t kRing = 128;
  size_t per_layer() const { return static_cast<size_t>(shape_.num_rows) * shape_.num_kv_heads; }
  size_t SlotOf(const device::AttentionList& list, uint32_t local) const {
    return size_t{pages_[list.first_page + local / kSlotPageTokens]} * kSlotPageTokens + local % kSlotPageTokens;
  }
  uint64_t DigestOf(uint32_t number, size_t entry) const {
    const device::AttentionList& list = lists_[number % shape_.num_layers * per_layer() + entry];
    uint64_t sum = 0;
    const auto add = [&](uint32_t local, uint64_t key) {
      const size_t words = shape_.row_bytes / sizeof(uint64_t);
      uint64_t of_row = 0;
      for (size_t word = 0; word < words; ++word) {
        of_row += slots_[SlotOf(list, local) * words + word] * device::DigestFactor(word);
      }
      sum += of_row * device::DigestFactor(~key);
    };
    for (uint32_t i = 0; i < list.selected_count; ++i) {
      const uint32_t index = selected_[list.selected_first + i];
      add(list.pool_base + index, index);
    }
    for (uint32_t i = 0; i < list.sinks; ++i) add(i, device::kSinkKey + i);
    for (uint32_t i = 0; i < list.recent_count; ++i) {
      const uint32_t position = list.recent_begin + i;
      add(list.ring_base + position % list.ring_tokens, device::kRecentKey + position);
    }
    return sum;
  }

  GpuContext& gpu_;
  const Shape shape_;
  std::vector<uint32_t> pages_, selected_, positions_;
  std::vector<uint64_t> slots_;
  std::vector<device::AttentionList> lists_;
  uint64_t* device_slots_ = nullptr;
  uint32_t* plan_ = nullptr;
  device::RowDigest* digests_ = nullptr;
  device::AttendedDigestParams params_;
};

}  // namespace

void CheckAttendedDigests(GpuContext& gpu) {
  for (const size_t row_bytes : {256u, 384u, 512u, 1024u}) {
    const std::string name = absl::StrCat("digests of attended rows of ", row_bytes, " bytes: ");
    AttendedLists lists(gpu,
                        {.num_layers = 3, .num_rows = 4, .num_kv_heads = 2, .row_bytes = row_bytes, .selected = 100});
    int wrong = 0;
    for (uint32_t number = 6; number < 12; ++number) wrong += lists.NumWrong(number);
    gpu.report.Check(name + "wrong", wrong, 0);
    lists.Damage(8, 5);
    gpu.report.Check(name + "of a damaged row, found", lists.NumWrong(8), 1);
    gpu.report.Check(name + "of a damaged row, not found", 1 - lists.NumWrong(8), 0);
    gpu.FreeAll();
  }
}

void BenchAttendedDigests(GpuContext& gpu) {
  for (const int rows : {1, 8}) {
    const Shape shape{.num_layers = 1, .num_rows = rows, .num_kv_heads = 8, .row_bytes = 512, .selected = 2048};
    std::vector<std::unique_ptr<AttendedLists>> sets;
    for (int i = 0; i < (rows == 1 ? 16 : 2); ++i) sets.push_back(std::make_unique<AttendedLists>(gpu, shape));
    const double bytes = rows * 8.0 * (2048 + 77) * 512;
    const double us = gpu.MedianUs(static_cast<int>(sets.size()), 32,
                                   [&](device::Stream stream, int set) { sets[set % sets.size()]->Enqueue(stream); });
    gpu.report.Time(absl::StrCat("digest of a layer's attended rows, B = ", rows), us, bytes / gpu.read_bytes_per_us);
    gpu.FreeAll();
  }
}

}  // namespace winnow
