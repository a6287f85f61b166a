#include "cache_rank/store/device/device_kv_store.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"
#include "common/base/status.h"

namespace winnow {

absl::StatusOr<std::unique_ptr<DeviceKvStore>> DeviceKvStore::Create(const device::DeviceTable* table,
                                                                     device::Device* device, const DeviceKvShape& shape,
                                                                     void* slots, const float* slot_scales) {
  const bool is_int8 = shape.layout.dtype == Dtype::kI8 && shape.rows == RowTier::kInPlace;
  if (shape.layout.dtype != Dtype::kBf16 && !is_int8) {
    return absl::InvalidArgumentError("rows in a GPU's memory are bf16, or in place int8");
  }
  WINNOW_CHECK(!is_int8 || (slots != nullptr && slot_scales != nullptr && !shape.key_copy));
  const bool apart = shape.rows == RowTier::kIndexOnly || shape.rows == RowTier::kPinnedHost;
  const bool may_read = !apart && shape.dram_blocks == 0 && (shape.rows == RowTier::kDevice || slots != nullptr);
  if (!may_read && shape.scores_keys && !shape.key_copy) {
    return absl::InvalidArgumentError(
        "with rows in DRAM, or of few bits, keys are scored from their copy: key_copy must not be none");
  }
  if (shape.cuboids && (shape.rows == RowTier::kIndexOnly || (shape.rows == RowTier::kInPlace && slots == nullptr))) {
    return absl::InvalidArgumentError("cuboid-means of pages are taken from rows, which are not here");
  }
  if (shape.pool_slots > 0 && shape.max_positions > device::kMostPooledPositions) {
    return absl::InvalidArgumentError(absl::StrCat("contexts of ", shape.max_positions,
                                                   " positions; rows that are sent or staged may be of at most ",
                                                   device::kMostPooledPositions));
  }
  WINNOW_RETURN_IF_ERROR(CheckDeviceMemory(shape, device->info().free_bytes));
  std::unique_ptr<DeviceKvStore> store(new DeviceKvStore(table, device, shape));
  if (shape.rows == RowTier::kInPlace) {
    store->arrays_.rows = slots;
    store->arrays_.row_scales = is_int8 ? slot_scales : nullptr;
  }
  WINNOW_RETURN_IF_ERROR(store->Allocate());
  return store;
}

DeviceKvStore::DeviceKvStore(const device::DeviceTable* table, device::Device* device, const DeviceKvShape& shape)
    : table_(table),
      device_(device),
      shape_(shape),
      sequences_(shape.max_sequences),
      free_blocks_(shape.num_blocks - shape.dram_blocks),
      free_dram_blocks_(shape.dram_blocks) {
  if (shape.rows == RowTier::kInPlace) free_blocks_.clear();  // they are the inference rank's to give
  std::iota(free_blocks_.rbegin(), free_blocks_.rend(), 0u);
  std::iota(free_dram_blocks_.rbegin(), free_dram_blocks_.rend(), static_cast<uint32_t>(free_blocks_.size()));
}

DeviceKvStore::BlockUse DeviceKvStore::block_use() const {
  const uint64_t device = shape_.num_blocks - shape_.dram_blocks;
  return {.device = device,
          .device_used = device - free_blocks_.size(),
          .dram = shape_.dram_blocks,
          .dram_used = shape_.dram_blocks - free_dram_blocks_.size()};
}

std::unique_ptr<DeviceKvStore> DeviceKvStore::Unallocated(const DeviceKvShape& shape) {
  return std::unique_ptr<DeviceKvStore>(new DeviceKvStore(nullptr, nullptr, shape));
}

void DeviceKvStore::Carve(device::Arena& arena) {
  const KvLayout& layout = shape_.layout;
  const size_t lists = shape_.max_sequences * layout.num_lists();
  const size_t rows = shape_.num_blocks * kBlockTokens;
  if (shape_.rows == RowTier::kDevice && shape_.dram_blocks == 0) arrays_.rows = arena.Take(rows * layout.row_bytes());
  if (shape_.key_copy) {
    arrays_.key_copy = arena.Take(rows * layout.head_dim * DtypeBytes(Dtype::kF8));
    arrays_.key_scales = arena.TakeArray<float>(rows);
  }
  if (shape_.page_tokens != 0) {
    arrays_.bounds = arena.Take(rows / shape_.page_tokens * 2 * layout.head_dim * DtypeBytes(Dtype::kBf16));
  }
  if (const size_t group_bytes = BytesOf(shape_).group_bounds; group_bytes > 0) {
    arrays_.group_bounds = arena.Take(group_bytes);
  }
  arrays_.block_tables = arena.TakeArray<uint32_t>(lists * shape_.blocks_per_list());
  arrays_.position_of = arena.TakeArray<uint32_t>(lists * shape_.pool_slots);
  arrays_.last_plan = arena.TakeArray<uint32_t>(lists * shape_.pool_slots);
  arrays_.peer_pages = arena.TakeArray<uint32_t>(lists * shape_.peer_pages());
  const size_t query_floats = static_cast<size_t>(layout.num_query_heads) * layout.head_dim;
  arrays_.past_queries =
      arena.TakeArray<float>(layout.num_layers * shape_.max_sequences * shape_.ring_queries * query_floats);
  arrays_.first_query_positions = arena.TakeArray<uint32_t>(shape_.max_sequences);
  arrays_.range_lists = arena.TakeArray<device::SelectionList>(lists);
  arrays_.range_positions = arena.TakeArray<uint32_t>(shape_.max_sequences * layout.num_kv_heads);
}

absl::Status DeviceKvStore::Allocate() {
  device::Arena counting(nullptr);
  Carve(counting);
  WINNOW_ASSIGN_OR_RETURN(memory_, device_->Allocate(counting.used_bytes()));
  device::Arena arena(memory_->data());
  Carve(arena);
  const DeviceKvBytes bytes = BytesOf(shape_);
  if (shape_.rows == RowTier::kPinnedHost) {
    WINNOW_ASSIGN_OR_RETURN(far_rows_, device_->AllocatePinned(bytes.rows));
  }
  if (shape_.dram_blocks > 0) {
    WINNOW_ASSIGN_OR_RETURN(far_rows_, device_->AllocateTiered(bytes.rows, bytes.dram_rows));
  }
  if (far_rows_ != nullptr) arrays_.rows = far_rows_->data();
  std::vector<device::SelectionList> lists(shape_.max_sequences * shape_.layout.num_lists());
  for (size_t i = 0; i < lists.size(); ++i) lists[i].first_block = static_cast<uint32_t>(i * shape_.blocks_per_list());
  const device::Stream stream = device_->NewStream();
  device_->CopyAsync(arrays_.range_lists, lists.data(), lists.size() * sizeof(lists[0]), stream);
  return device_->Synchronize(stream);
}

absl::Status DeviceKvStore::CheckLength(uint32_t max_positions) const {
  if (max_positions <= shape_.max_positions) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("a sequence of ", max_positions, " positions; ", shape_.max_positions, " were planned for"));
}

void DeviceKvStore::SetBlocks(uint32_t sequence, std::span<const uint32_t> blocks, device::Stream stream) {
  const size_t num_lists = shape_.layout.num_lists(), per_list = blocks.size() / num_lists;
  WINNOW_CHECK(per_list <= shape_.blocks_per_list());
  std::vector<uint32_t> tables(num_lists * shape_.blocks_per_list());
  for (size_t list = 0; list < num_lists; ++list) {
    std::copy_n(blocks.begin() + static_cast<int64_t>(list * per_list), per_list,
                tables.begin() + static_cast<int64_t>(list * shape_.blocks_per_list()));
  }
  device_->CopyAsync(arrays_.block_tables + FirstBlock(sequence, 0), tables.data(), tables.size() * sizeof(uint32_t),
                     stream);
  ForgetResidency(sequence, stream);
}

absl::StatusOr<uint32_t> DeviceKvStore::Open(uint32_t max_positions, device::Stream stream) {
  WINNOW_CHECK(shape_.rows != RowTier::kInPlace);
  WINNOW_RETURN_IF_ERROR(CheckLength(max_positions));
  const auto place = std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return !s.is_open; });
  if (place == sequences_.end()) {
    return absl::ResourceExhaustedError(absl::StrCat("all ", sequences_.size(), " sequences are taken"));
  }
  const auto sequence = static_cast<uint32_t>(place - sequences_.begin());
  const uint64_t wanted = shape_.BlocksOf(max_positions);
  if (wanted > free_blocks()) {
    return absl::ResourceExhaustedError(absl::StrCat("a sequence of ", max_positions, " positions takes ", wanted,
                                                     " blocks, and ", free_blocks(), " are free"));
  }
  Sequence& opened = sequences_[sequence];
  opened.is_open = true;
  opened.max_positions = max_positions;
  opened.index = shape_.own_index();
  const auto take = [&](std::vector<uint32_t>& free) {
    const uint64_t count = std::min<uint64_t>(free.size(), wanted - opened.blocks.size());
    opened.blocks.insert(opened.blocks.end(), free.rbegin(), free.rbegin() + static_cast<int64_t>(count));
    free.resize(free.size() - count);
  };
  take(free_blocks_);
  take(free_dram_blocks_);
  SetBlocks(sequence, opened.blocks, stream);
  return sequence;
}

absl::Status DeviceKvStore::OpenAt(uint32_t sequence, uint32_t max_positions, std::span<const uint32_t> blocks,
                                   const DeviceIndex& index, device::Stream stream) {
  WINNOW_CHECK(shape_.rows == RowTier::kInPlace && blocks.size() == shape_.BlocksOf(max_positions));
  WINNOW_CHECK(sequence < sequences_.size() && !is_open(sequence));
  WINNOW_RETURN_IF_ERROR(CheckLength(max_positions));
  sequences_[sequence].is_open = true;
  sequences_[sequence].max_positions = max_positions;
  sequences_[sequence].index = index;
  SetBlocks(sequence, blocks, stream);
  return absl::OkStatus();
}

void DeviceKvStore::Release(uint32_t sequence) {
  WINNOW_CHECK(is_open(sequence));
  Sequence& released = sequences_[sequence];
  const uint64_t first_in_dram = shape_.num_blocks - shape_.dram_blocks;
  for (auto block = released.blocks.rbegin(); block != released.blocks.rend(); ++block) {
    (*block < first_in_dram ? free_blocks_ : free_dram_blocks_).push_back(*block);
  }
  released = {};
}

absl::Status DeviceKvStore::AppendRange(uint32_t sequence, int layer, uint32_t first, uint32_t count, const void* rows,
                                        device::Stream stream) {
  WINNOW_CHECK(is_open(sequence));
  if (uint64_t{first} + count > sequences_[sequence].max_positions) {
    return absl::OutOfRangeError(
        absl::StrCat("rows up to ", uint64_t{first} + count, " of a sequence of ", sequences_[sequence].max_positions));
  }
  const bool is_there = rows == nullptr && sequences_[sequence].index.empty();
  if (count == 0 || is_there) return absl::OkStatus();
  device::AppendParams append = RangeParams(sequence, layer, first, count, stream);
  append.rows = rows;
  Append(stream, append, sequences_[sequence].index);
  return absl::OkStatus();
}

void DeviceKvStore::BoundGroups(uint32_t sequence, int layer, uint32_t end, device::Stream stream) {
  WINNOW_CHECK(is_open(sequence) && end <= sequences_[sequence].max_positions);
  if (!sequences_[sequence].index.page_groups || end == 0) return;
  table_->cache->bound_groups(stream, RangeParams(sequence, layer, 0, end, stream));
}

device::AppendParams DeviceKvStore::RangeParams(uint32_t sequence, int layer, uint32_t first, uint32_t count,
                                                device::Stream stream) {
  const std::vector<uint32_t> positions(shape_.layout.num_kv_heads, first);
  device::AppendParams append = append_params(sequences_[sequence].index);
  append.num_lists = shape_.layout.num_kv_heads;
  append.rows_per_list = static_cast<int>(count);
  uint32_t* const on_device = arrays_.range_positions + size_t{sequence} * positions.size();
  device_->CopyAsync(on_device, positions.data(), positions.size() * sizeof(uint32_t), stream);
  append.positions = on_device;
  append.lists = arrays_.range_lists + list_index(sequence, shape_.layout.list(layer, 0));
  return append;
}

template <typename Copy>
void DeviceKvStore::ForEachRun(uint32_t sequence, int layer, uint32_t end, uint32_t count, Copy copy) const {
  const device::QueryRings rings = query_rings(layer);
  const size_t floats = static_cast<size_t>(shape_.layout.num_query_heads) * shape_.layout.head_dim;
  for (uint32_t first = 0, run = 0; first < count; first += run) {
    const uint32_t at = (end - count + first) % rings.capacity;
    run = std::min(count - first, rings.capacity - at);
    copy(rings.queries + sequence * rings.sequence_stride + at * floats, first * floats, run * floats);
  }
}

absl::Status DeviceKvStore::LoadPastQueries(uint32_t sequence, int layer, uint32_t end, uint32_t count,
                                            const float* queries, device::Stream stream) {
  WINNOW_CHECK(is_open(sequence));
  if (count > shape_.ring_queries || count > end) {
    return absl::InvalidArgumentError(
        absl::StrCat(count, " queries up to position ", end, "; ", shape_.ring_queries, " are kept"));
  }
  const uint32_t first = end - count;
  device_->CopyAsync(arrays_.first_query_positions + sequence, &first, sizeof(first), stream);
  ForEachRun(sequence, layer, end, count, [&](float* place, size_t from, size_t floats) {
    device_->CopyAsync(place, queries + from, floats * sizeof(float), stream);
  });
  return absl::OkStatus();
}

void DeviceKvStore::ReadPastQueries(uint32_t sequence, int layer, uint32_t end, uint32_t count, float* queries,
                                    device::Stream stream) const {
  WINNOW_CHECK(is_open(sequence) && count <= shape_.ring_queries && count <= end);
  ForEachRun(sequence, layer, end, count, [&](const float* place, size_t to, size_t floats) {
    device_->CopyAsync(queries + to, place, floats * sizeof(float), stream);
  });
}

void DeviceKvStore::ForgetResidency(uint32_t sequence, device::Stream stream) {
  const size_t lists = shape_.layout.num_lists(), first = list_index(sequence, 0);
  const auto fill = [&](uint32_t* words, size_t per_list, int byte) {
    device_->FillAsync(words + first * per_list, byte, lists * per_list * sizeof(uint32_t), stream);
  };
  fill(arrays_.position_of, shape_.pool_slots, 0xff);
  fill(arrays_.last_plan, shape_.pool_slots, 0);
}

absl::Status DeviceKvStore::SetPeerPages(uint32_t sequence, std::span<const uint32_t> pages, device::Stream stream) {
  const size_t lists = shape_.layout.num_lists(), per_list = pages.size() / lists;
  if (per_list > shape_.peer_pages() || per_list * lists != pages.size()) {
    return absl::InvalidArgumentError(absl::StrCat(pages.size(), " slot pages for ", lists, " lists of at most ",
                                                   shape_.peer_pages(), " pages each"));
  }
  std::vector<uint32_t> padded(lists * shape_.peer_pages());
  for (size_t list = 0; list < lists; ++list) {
    std::copy_n(pages.data() + list * per_list, per_list,
                padded.begin() + static_cast<int64_t>(list * shape_.peer_pages()));
  }
  device_->CopyAsync(arrays_.peer_pages + list_index(sequence, 0) * shape_.peer_pages(), padded.data(),
                     padded.size() * sizeof(uint32_t), stream);
  return absl::OkStatus();
}

device::KeyStore DeviceKvStore::keys(bool of_copy) const {
  WINNOW_CHECK(shape_.key_copy || !of_copy);
  const KvLayout& layout = shape_.layout;
  if (!of_copy && layout.dtype == Dtype::kI8) {
    const size_t code_bytes = layout.row.scales_offset_bytes(layout.head_dim, Dtype::kI8);
    return {.keys = arrays_.rows,
            .block_stride = static_cast<int64_t>(kBlockTokens * code_bytes),
            .key_stride = static_cast<int64_t>(code_bytes),
            .scales = arrays_.row_scales,
            .scale_stride = 2,
            .dtype = Dtype::kI8};
  }
  if (!of_copy) {
    return {.keys = arrays_.rows,
            .block_stride = static_cast<int64_t>(layout.block_bytes()),
            .key_stride = static_cast<int64_t>(layout.row_bytes()),
            .dtype = Dtype::kBf16};
  }
  const auto key_bytes = static_cast<int64_t>(layout.head_dim * DtypeBytes(Dtype::kF8));
  return {.keys = arrays_.key_copy,
          .block_stride = kBlockTokens * key_bytes,
          .key_stride = key_bytes,
          .scales = arrays_.key_scales,
          .dtype = Dtype::kF8};
}

device::PageStore DeviceKvStore::pages(const DeviceIndex& index) const {
  if (index.page_tokens == 0) return {};
  device::PageStore pages{.bounds = arrays_.bounds,
                          .page_tokens = static_cast<int>(index.page_tokens),
                          .group_bounds = index.page_groups ? arrays_.group_bounds : nullptr};
  const bool is_own = index.page_tokens == shape_.page_tokens && index.cuboids == shape_.cuboids;
  if (is_own) return pages;
  // In the place of a block's 8-bit keys, or of its own bounds.
  if (shape_.key_copy) pages.bounds = arrays_.key_copy;
  pages.block_stride = static_cast<int64_t>(OtherBoundsBytes(shape_));
  return pages;
}

device::AppendParams DeviceKvStore::append_params(const DeviceIndex& index) const {
  const device::PageStore of_pages = pages(index);
  return {.head_dim = shape_.layout.head_dim,
          .blocks = arrays_.block_tables,
          .row_pool = arrays_.rows,
          .key_copy = index.key_copy ? arrays_.key_copy : nullptr,
          .key_scales = arrays_.key_scales,
          .bounds = index.cuboids ? nullptr : const_cast<void*>(of_pages.bounds),
          .page_tokens = of_pages.page_tokens,
          .page_block_stride = of_pages.block_stride,
          .group_bounds = const_cast<void*>(of_pages.group_bounds),
          .row_scales = arrays_.row_scales};
}

void DeviceKvStore::Append(device::Stream stream, const device::AppendParams& append, const DeviceIndex& index) const {
  const bool stores = append.rows != nullptr && append.row_pool != nullptr;
  if (stores || append.key_copy != nullptr || append.bounds != nullptr) {
    table_->cache->append(stream, append);
  }
  if (!index.cuboids) return;
  const device::PageStore cuboids = pages(index);
  table_->page_units->index_cuboids(stream, {.lists = append.lists,
                                             .num_lists = append.num_lists,
                                             .positions = append.positions,
                                             .rows_per_list = append.rows_per_list,
                                             .blocks = append.blocks,
                                             .row_pool = arrays_.rows,
                                             .row_scales = arrays_.row_scales,
                                             .head_dim = append.head_dim,
                                             .page_tokens = cuboids.page_tokens,
                                             .cuboids = const_cast<void*>(cuboids.bounds),
                                             .block_stride = cuboids.block_stride});
}

device::QueryRings DeviceKvStore::query_rings(int layer) const {
  const auto stride =
      static_cast<int64_t>(shape_.ring_queries) * shape_.layout.num_query_heads * shape_.layout.head_dim;
  return {.queries = arrays_.past_queries + layer * shape_.max_sequences * stride,
          .sequence_stride = stride,
          .capacity = shape_.ring_queries};
}

uint32_t DeviceKvStore::FirstBlock(uint32_t sequence, size_t list) const {
  return static_cast<uint32_t>(list_index(sequence, list) * shape_.blocks_per_list());
}

device::ResidencyList DeviceKvStore::Residency(uint32_t sequence, size_t list) const {
  const size_t index = list_index(sequence, list);
  return {.position_of = arrays_.position_of + index * shape_.pool_slots,
          .last_plan = arrays_.last_plan + index * shape_.pool_slots,
          .pool_slots = shape_.pool_slots};
}

const uint32_t* DeviceKvStore::PeerPages(uint32_t sequence, size_t list) const {
  return arrays_.peer_pages + list_index(sequence, list) * shape_.peer_pages();
}

}  // namespace winnow
