#pragma once
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

namespace winnow {

// "64,1024" as numbers; throws what std::stoul throws.
inline std::vector<uint32_t> ParseNumbers(const std::string& list) {
  std::vector<uint32_t> numbers;
  std::stringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) numbers.push_back(static_cast<uint32_t>(std::stoul(item)));
  return numbers;
}

}  // namespace winnow
