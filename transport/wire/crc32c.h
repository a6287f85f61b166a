#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace winnow {

// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78, start and final xor 0xffffffff), as in RFC 3720.
// `crc` continues from the checksum of the bytes before. Takes the fastest way the CPU has.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

// The implementations behind Crc32c, for its test.
uint32_t Crc32cPortable(std::span<const std::byte> bytes, uint32_t crc);
bool HasCrc32cInstruction();
uint32_t Crc32cHardware(std::span<const std::byte> bytes, uint32_t crc);  // needs HasCrc32cInstruction()
bool HasCrc32cFolding();
uint32_t Crc32cFolding(std::span<const std::byte> bytes, uint32_t crc);  // needs HasCrc32cFolding()

}  // namespace winnow
