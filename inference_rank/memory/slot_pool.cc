#include "inference_rank/memory/slot_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace winnow {

absl::StatusOr<SlotPool> SlotPool::Create(size_t row_bytes, uint32_t num_pages) {
  SlotPool pool;
  pool.row_bytes_ = row_bytes;
  pool.num_pages_ = pool.front_pages_ = num_pages;
  pool.mapped_bytes_ = static_cast<size_t>(num_pages) * kSlotPageTokens * row_bytes;
  void* memory =
      mmap(nullptr, pool.mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", pool.mapped_bytes_, " bytes of slot memory: ", std::strerror(errno)));
  }
  madvise(memory, pool.mapped_bytes_, MADV_HUGEPAGE);
  pool.parts_ = {{.rows = static_cast<std::byte*>(memory)}};
  pool.FreeAll();
  return pool;
}

SlotPool SlotPool::OnDevices(size_t row_bytes, uint32_t num_pages, std::vector<Part> parts, uint32_t host_pages) {
  WINNOW_CHECK(host_pages <= num_pages && (host_pages == 0 || parts.size() == 1));
  SlotPool pool;
  pool.row_bytes_ = row_bytes;
  pool.num_pages_ = num_pages;
  pool.front_pages_ = num_pages - host_pages;
  pool.parts_ = std::move(parts);
  pool.FreeAll();
  return pool;
}

void SlotPool::FreeAll() {
  for (uint32_t page = num_pages_; page > 0; --page) free_[static_cast<size_t>(place_of(page - 1))].push_back(page - 1);
}

SlotPool::SlotPool(SlotPool&& other) noexcept {
  *this = std::move(other);
}

SlotPool& SlotPool::operator=(SlotPool&& other) noexcept {
  std::swap(parts_, other.parts_);
  std::swap(row_bytes_, other.row_bytes_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(num_pages_, other.num_pages_);
  std::swap(front_pages_, other.front_pages_);
  std::swap(free_, other.free_);
  std::swap(threads_, other.threads_);
  return *this;
}

SlotPool::~SlotPool() {
  if (parts_.empty()) return;
  WINNOW_CHECK(free_pages() == num_pages_);  // every page came back
  if (mapped_bytes_ > 0) munmap(parts_[0].rows, mapped_bytes_);
}

void SlotPool::WriteRows(std::span<const uint32_t> slots, const std::byte* host_rows,
                         const std::shared_ptr<const void>& keep) {
  if (slots.empty()) return;
  const int part = PartOf(slots[0]);
  if (RowMover* const mover = parts_[part].mover; mover != nullptr) {
    return mover->WriteRows(slots, first_slot(part), host_rows, threads_, keep);
  }
  ForParts(threads_, slots.size(), kCopiedTogether, [&](size_t first, size_t number) {
    for (size_t i = first; i < first + number; ++i) {
      std::memcpy(RowIn(part, slots[i]), host_rows + i * row_bytes_, row_bytes_);
    }
  });
}

absl::StatusOr<std::vector<uint32_t>> SlotPool::Allocate(uint32_t pages) {
  if (pages > free_pages()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(pages, " slot pages wanted, ", free_pages(), " of ", num_pages_, " free"));
  }
  std::vector<uint32_t> taken;
  const uint32_t in_front = std::min(pages, free_pages(SlotPlace::kFront));
  Take(in_front, SlotPlace::kFront, taken);
  Take(pages - in_front, SlotPlace::kHostBehindGpu, taken);
  return taken;
}

absl::StatusOr<std::vector<uint32_t>> SlotPool::Allocate(uint32_t pages, SlotPlace place) {
  if (pages > free_pages(place)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(pages, " slot pages wanted in ", place == SlotPlace::kFront ? "the GPU's" : "the host's",
                     " memory, ", free_pages(place), " of ", num_pages(place), " free there"));
  }
  std::vector<uint32_t> taken;
  Take(pages, place, taken);
  return taken;
}

// The lowest pages first, in ascending order: neighbours in a list are then mostly neighbours in memory.
void SlotPool::Take(uint32_t pages, SlotPlace place, std::vector<uint32_t>& taken) {
  std::vector<uint32_t>& free = free_[static_cast<size_t>(place)];
  taken.insert(taken.end(), free.rbegin(), free.rbegin() + pages);
  free.resize(free.size() - pages);
}

void SlotPool::Free(const std::vector<uint32_t>& pages) {
  for (const uint32_t page : pages) free_[static_cast<size_t>(place_of(page))].push_back(page);
}

}  // namespace winnow
