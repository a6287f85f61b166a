#pragma once
#include <atomic>
#include <cstdint>
#include <optional>

namespace winnow {

// A stored row that is not what was written; layer and kv head of the shard.
struct DamagedRow {
  int layer = 0;
  int kv_head = 0;
  uint32_t position = 0;
};

// The first damaged row that anybody found of a sequence: what was read of it since must go nowhere. Any thread.
class DamageNote {
 public:
  void Write(const DamagedRow& row) {
    uint64_t none = 0;
    packed_.compare_exchange_strong(
        none, kSet | static_cast<uint64_t>(row.layer) << 48 | static_cast<uint64_t>(row.kv_head) << 32 | row.position);
  }
  bool is_set() const { return packed_.load(std::memory_order_acquire) != 0; }
  std::optional<DamagedRow> Read() const {
    const uint64_t packed = packed_.load(std::memory_order_acquire);
    if (packed == 0) return std::nullopt;
    return DamagedRow{static_cast<int>(packed >> 48 & 0x7fff), static_cast<int>(packed >> 32 & 0xffff),
                      static_cast<uint32_t>(packed)};
  }

 private:
  static constexpr uint64_t kSet = uint64_t{1} << 63;  // then 15 bits of layer, 16 of kv head, 32 of position
  std::atomic<uint64_t> packed_{0};
};

}  // namespace winnow
