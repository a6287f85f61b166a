#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/kv_layout.h"

namespace winnow {

// Hashes of prompt prefixes, one per full block of kBlockTokens tokens, each over its block and the hash before it, so
// that equal hashes stand for equal prefixes. The chain begins with a salt. Whoever shares memory by these hashes
// compares the tokens too: the function is fast and not cryptographic (the finaliser of SplitMix64 after every word).

constexpr uint64_t MixPrefixWord(uint64_t hash, uint64_t word) {
  uint64_t x = hash + 0x9e3779b97f4a7c15 + word * 0xff51afd7ed558ccd;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The start of a chain.
constexpr uint64_t PrefixRoot(std::string_view salt) {
  uint64_t hash = salt.size();
  for (const char c : salt) hash = MixPrefixWord(hash, static_cast<unsigned char>(c));
  return hash;
}

// `block` [kBlockTokens].
constexpr uint64_t ExtendPrefix(uint64_t hash, std::span<const uint32_t> block) {
  for (const uint32_t token : block) hash = MixPrefixWord(hash, token);
  return hash;
}

}  // namespace winnow
