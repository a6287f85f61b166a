#include "transport/wire/crc32c.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "transport/wire/crc32c_rows.h"
#include "transport/wire/payload_checksum.h"
#include "transport/wire/wire.h"

namespace winnow {
namespace {

// Bit by bit, from the definition.
uint32_t Reference(std::span<const std::byte> bytes) {
  uint32_t crc = 0xffffffff;
  for (const std::byte b : bytes) {
    crc ^= static_cast<uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::vector<std::byte> RandomBytes(size_t size) {
  std::mt19937 random(static_cast<uint32_t>(size));
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

TEST(Crc32cTest, HasTheValuesOfRfc3720) {
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32, std::byte{0})), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
}

TEST(Crc32cTest, AllImplementationsFollowTheDefinitionAtEverySizeAndAlignment) {
  const std::vector<size_t> sizes = {0,   1,   7,   8,    9,    63,   255,   256,   257,   511,   512,  513,
                                     767, 768, 769, 1535, 1536, 4095, 12287, 12288, 12289, 13057, 40001};
  for (const size_t size : sizes) {
    for (const size_t offset : {0, 1, 5}) {
      const std::vector<std::byte> all = RandomBytes(size + offset);
      const std::span<const std::byte> bytes = std::span(all).subspan(offset);
      const uint32_t portable = Crc32cPortable(bytes, 0);
      const uint32_t hardware = HasCrc32cInstruction() ? Crc32cHardware(bytes, 0) : portable;
      const uint32_t folding = HasCrc32cFolding() ? Crc32cFolding(bytes, 0) : portable;
      const uint32_t expected = Reference(bytes);
      EXPECT_EQ(portable, expected) << size << " at " << offset;
      EXPECT_EQ(hardware, expected) << size << " at " << offset;
      EXPECT_EQ(folding, expected) << size << " at " << offset;
    }
  }
}

TEST(Crc32cTest, ContinuesFromTheBytesBefore) {
  const std::vector<std::byte> bytes = RandomBytes(30'000);
  for (const size_t split : {0, 1, 100, 12'288, 29'999, 30'000}) {
    const uint32_t first = Crc32c(std::span(bytes).first(split));
    const uint32_t both = Crc32c(std::span(bytes).subspan(split), first);
    EXPECT_EQ(both, Reference(bytes)) << split;
  }
}

TEST(Crc32cRowsTest, EachRowHasTheChecksumOfItsBytes) {
  for (const size_t row_bytes : {4, 24, 64, 100, 256, 512, 1408}) {
    for (const size_t rows : {0, 1, 3, 4, 5, 32, 33}) {
      const std::vector<std::byte> bytes = RandomBytes(rows * row_bytes);
      std::vector<uint32_t> checksums(rows);
      Crc32cOfRows(bytes.data(), row_bytes, checksums);
      for (size_t row = 0; row < rows; ++row) {
        EXPECT_EQ(checksums[row], Reference(std::span(bytes).subspan(row * row_bytes, row_bytes)))
            << row << " of " << rows << " of " << row_bytes;
      }
    }
  }
}

TEST(PayloadChecksumTest, IsTheSameWhoeverWorksOutItsPartsInWhateverOrder) {
  size_t parts_run = 0;
  const PayloadChecksum by_threads([&](size_t count, absl::FunctionRef<void(size_t)> body) {
    for (size_t i = count; i > 0; --i) body(i - 1);
    parts_run += count;
  });
  for (const size_t size : std::vector<size_t>{0, 1, 65535, 65536, 65537, 100'000, 262'144, wire::kMaxPayloadBytes - 1,
                                               wire::kMaxPayloadBytes}) {
    const std::vector<std::byte> payload = RandomBytes(size);
    EXPECT_EQ(by_threads.Of(payload), Crc32c(payload)) << size;
    EXPECT_EQ(PayloadChecksum().Of(payload), Crc32c(payload)) << size;
  }
  EXPECT_GT(parts_run, 0u);
}

}  // namespace
}  // namespace winnow
