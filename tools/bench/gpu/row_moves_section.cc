// Rows from any place to any other: what the host writes into slots.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

constexpr double kPcieBytesPerUs = 51e3;  // measured with rows of 512 bytes from pinned memory

struct Pinned {
  explicit Pinned(GpuContext& gpu, size_t bytes) : memory(gpu.device.AllocatePinned(bytes).value()) {}
  template <typename T>
  T* data() const {
    return static_cast<T*>(memory->data());
  }
  std::unique_ptr<device::DeviceMemory> memory;
};

std::vector<uint32_t> Shuffled(GpuContext& gpu, uint32_t count) {
  std::vector<uint32_t> order(count);
  for (uint32_t i = 0; i < count; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), gpu.random);
  return order;
}

// Half of the rows from pinned memory, half from the device, to random places of poisoned memory; the places in between
// must stay as they are.
void CheckRows(GpuContext& gpu, size_t row_bytes, uint32_t num_moves) {
  const size_t rows = 2 * static_cast<size_t>(num_moves) + 1;
  std::vector<uint8_t> values(num_moves * row_bytes);
  for (uint8_t& value : values) value = static_cast<uint8_t>(gpu.random());
  Pinned host(gpu, values.size());
  std::memcpy(host.data<uint8_t>(), values.data(), values.size());
  const uint8_t* device = gpu.Upload(values);
  auto* to = gpu.New<uint8_t>(rows * row_bytes);
  const std::vector<uint32_t> places = Shuffled(gpu, static_cast<uint32_t>(rows));
  Pinned moves(gpu, num_moves * sizeof(device::RowMove));
  std::vector<uint8_t> expected(rows * row_bytes, 0xff);
  for (uint32_t i = 0; i < num_moves; ++i) {
    const uint8_t* from = (i % 2 == 0 ? host.data<uint8_t>() : device) + i * row_bytes;
    moves.data<device::RowMove>()[i] = {.from = from, .to = to + places[i] * row_bytes};
    std::memcpy(expected.data() + places[i] * row_bytes, values.data() + i * row_bytes, row_bytes);
  }
  gpu.table.rows->move_rows(gpu.stream,
                            {.moves = moves.data<device::RowMove>(), .num_moves = num_moves, .row_bytes = row_bytes});
  const std::vector<uint8_t> result = gpu.Download(to, rows * row_bytes);
  size_t wrong = 0;
  for (size_t i = 0; i < result.size(); ++i) wrong += result[i] != expected[i];
  gpu.report.Check(absl::StrCat("move ", num_moves, " rows of ", row_bytes, " bytes"), static_cast<double>(wrong), 0);
  gpu.FreeAll();
}

// Rows of int8, several to a move: from memory with scales behind codes to slots, whose scales lie apart, from there to
// other slots, and back.
void CheckInt8Rows(GpuContext& gpu, size_t code_bytes, uint32_t num_moves, uint32_t rows_of_move) {
  const device::Int8Slots sizes{.code_bytes = code_bytes};
  const size_t row_bytes = sizes.row_bytes(), move_bytes = rows_of_move * row_bytes;
  const size_t num_slots = 2 * size_t{num_moves} * rows_of_move;
  std::vector<uint8_t> values(num_moves * move_bytes);
  for (uint8_t& value : values) value = static_cast<uint8_t>(gpu.random());
  Pinned host(gpu, values.size());
  std::memcpy(host.data<uint8_t>(), values.data(), values.size());
  auto* const slots = gpu.New<uint8_t>(num_slots * row_bytes);
  auto* const back = gpu.New<uint8_t>(values.size());
  const device::Int8Slots int8{.codes = slots, .num_slots = num_slots, .code_bytes = code_bytes};
  const std::vector<uint32_t> places = Shuffled(gpu, 2 * num_moves);
  const auto move = [&](const auto& from, const auto& to) {
    Pinned moves(gpu, num_moves * sizeof(device::RowMove));
    for (uint32_t i = 0; i < num_moves; ++i) moves.data<device::RowMove>()[i] = {.from = from(i), .to = to(i)};
    gpu.table.rows->move_rows(
        gpu.stream,
        {.moves = moves.data<device::RowMove>(), .num_moves = num_moves, .row_bytes = move_bytes, .int8_slots = int8});
    WINNOW_CHECK(gpu.device.Synchronize(gpu.stream).ok());
  };
  const auto slot = [&](uint32_t i) { return slots + places[i] * move_bytes; };
  move([&](uint32_t i) { return host.data<uint8_t>() + i * move_bytes; }, slot);
  move(slot, [&](uint32_t i) { return slot(num_moves + i); });
  move([&](uint32_t i) { return slot(num_moves + i); }, [&](uint32_t i) { return back + i * move_bytes; });
  const std::string name = absl::StrCat("move ", num_moves, " x ", rows_of_move, " rows of int8 of ", code_bytes, ": ");
  size_t wrong = 0;
  const std::vector<uint8_t> result = gpu.Download(back, values.size());
  for (size_t i = 0; i < result.size(); ++i) wrong += result[i] != values[i];
  gpu.report.Check(name + "there and back", static_cast<double>(wrong), 0);
  // Every slot has its part of a move: codes in front, scales behind those of all slots.
  const std::vector<uint8_t> all = gpu.Download(slots, num_slots * row_bytes);
  wrong = 0;
  for (uint32_t i = 0; i < 2 * num_moves; ++i) {
    for (uint32_t r = 0; r < rows_of_move; ++r) {
      const uint8_t* const wanted = values.data() + (i % num_moves) * move_bytes + r * row_bytes;
      const size_t number = size_t{places[i]} * rows_of_move + r;
      wrong += std::memcmp(&all[number * code_bytes], wanted, code_bytes) != 0;
      wrong += std::memcmp(&all[num_slots * code_bytes + number * 8], wanted + code_bytes, 8) != 0;
    }
  }
  gpu.report.Check(name + "in slots", static_cast<double>(wrong), 0);
  gpu.FreeAll();
}

void Check(GpuContext& gpu) {
  for (const size_t code_bytes : gpu.Cases<size_t>({128, 192, 256, 512}, 2)) {
    CheckInt8Rows(gpu, code_bytes, gpu.Size(3000u, 100u), 1);
    CheckInt8Rows(gpu, code_bytes, gpu.Size(300u, 10u), 64);
    CheckInt8Rows(gpu, code_bytes, 7, 5);
  }
  for (const size_t row_bytes : gpu.Cases<size_t>({16, 256, 384, 512, 1024}, 2)) {
    for (const uint32_t num_moves : {0u, 1u, 7u, gpu.Size(2048u, 100u), gpu.Size(70000u, 3000u)})
      CheckRows(gpu, row_bytes, num_moves);
  }
}

void Bench(GpuContext& gpu) {
  constexpr size_t kRowBytes = 512;
  for (const uint32_t num_moves : {64u, 1024u, 16384u}) {
    Pinned host(gpu, num_moves * kRowBytes);
    Pinned moves(gpu, num_moves * sizeof(device::RowMove));
    auto* to = gpu.New<uint8_t>(num_moves * kRowBytes);
    const std::vector<uint32_t> places = Shuffled(gpu, num_moves);
    for (uint32_t i = 0; i < num_moves; ++i) {
      moves.data<device::RowMove>()[i] = {.from = host.data<uint8_t>() + i * kRowBytes,
                                          .to = to + places[i] * kRowBytes};
    }
    const double us = gpu.MedianUs(1, 8, [&](device::Stream stream, int) {
      gpu.table.rows->move_rows(
          stream, {.moves = moves.data<device::RowMove>(), .num_moves = num_moves, .row_bytes = kRowBytes});
    });
    gpu.report.Time(absl::StrCat("move ", num_moves, " rows of 512 B from pinned memory"), us,
                    static_cast<double>(num_moves * kRowBytes) / kPcieBytesPerUs);
    gpu.FreeAll();
  }
}

}  // namespace

GpuSection RowMovesSection() {
  return {"rows", Check, Bench};
}

}  // namespace winnow
