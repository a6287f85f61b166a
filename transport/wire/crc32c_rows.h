#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace winnow {

// The CRC-32C of each of `checksums.size()` rows of `row_bytes` that lie one behind the other. Rows are short for a
// checksum, whose instruction has a latency of several cycles: four of them are fed at a time.
void Crc32cOfRows(const std::byte* rows, size_t row_bytes, std::span<uint32_t> checksums);

}  // namespace winnow
